"""Feed-forward experts that share a frozen block and differ in low-rank changes (MixLoRA)."""

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from mttl.plugins.part_settings import Fraction, Positive, PositiveInt
from mttl.routing.token.choice import Assignment, combine, sort_by_expert
from mttl.skills.blocks.feed_forward import FeedForwardBlock
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.targets import linear_features
from mttl.skills.weights.lora import LoRAExperts


class LoRABlockExperts(Inventory):
    r"""Experts :math:`(W_o + \Delta^o_e)\,(a((W_g + \Delta^g_e) x) \odot (W_i + \Delta^i_e) x)`.

    Each replaces the block, whose weights W are frozen, and has low-rank changes of its
    projections. A layer equals the block at first if the gates of a token sum to 1.

    Args:
        block: The block, which stays a module of the layer.
        rank: Rank r of each change.
        alpha: Numerator of the factor alpha / rank on the change; 1 by default.
        dropout: Probability that an entry of a change's input is dropped in training.

    Raises:
        ValueError: If a projection has skills.

    References:
        Li et al., *MixLoRA: Enhancing Large Language Models Fine-Tuning with LoRA-based Mixture of
        Experts*, 2024, arXiv:2404.15159.
    """

    lacks: ClassVar = {
        "shares_experts": "its experts share a block; set moe.parallel: false",
        "policies": "a policy has no feed-forward blocks to change; set {path}.kind: adapter",
    }
    uses = ("token",)
    attachment_point = "block"
    reads = "block"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        block: FeedForwardBlock,
        rank: PositiveInt = 16,
        alpha: Positive = 1.0,
        dropout: Fraction = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.block = (block,)  # in a tuple, so that its weights are not those of the experts
        self.changes_of = nn.ModuleDict()
        for name, part in parts_of(block).items():
            sizes = linear_features(part)
            if isinstance(part, SkilledLayer) or sizes is None:
                raise ValueError(
                    f"a feed-forward block that contains {type(part).__name__} cannot be shared by "
                    "experts; remove it from the skills' targets"
                )
            self.changes_of[name] = LoRAExperts(
                *sizes, n_skills, rank=rank, alpha=alpha, dropout=dropout
            )

    def reset_parameters(self) -> None:
        for change in self.changes_of.values():
            change.reset_parameters()  # type: ignore[operator]

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        work, (block,) = sort_by_expert(assignment), self.block
        rows = x[work.tokens]

        def changed(name: str, read: Tensor, y: Tensor) -> Tensor:
            change: Any = self.changes_of[name]
            return change.add_to_rows(read, y, change.factors(), work.counts)

        # The base's products are the same for all experts of a token.
        hidden = changed("up", rows, block.up(x)[work.tokens])
        if block.gate is None:
            hidden = block.activation(hidden)
        else:
            gate = changed("gate", rows, block.gate(x)[work.tokens])
            hidden = block.activation(gate) * hidden
        hidden = nn.functional.dropout(hidden, block.dropout, self.training)
        return combine(changed("down", hidden, block.down(hidden)), work, len(x))


def parts_of(block: FeedForwardBlock) -> dict[str, nn.Module]:
    """Return the projections of a block by name."""
    named = {"gate": block.gate, "up": block.up, "down": block.down}
    return {name: part for name, part in named.items() if part is not None}
