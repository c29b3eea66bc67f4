"""Bottleneck adapters, dense or sparse: small networks parallel to or after a block."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import MinLen
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.grouped import grouped_linear
from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Fraction, OneOf, Positive, PositiveInt
from mttl.routing.token.choice import Assignment, combine, sort_by_expert
from mttl.skills.blocks.feed_forward_experts import (
    ActivationSetting,
    FeedForwardExperts,
    activation_of,
)
from mttl.skills.inventory import NO_WEIGHTS, Inputs, Inventory, Merged, Outputs
from mttl.skills.weights.supports import random_support, spread

# Down-projection and up-projection, each with its bias: (K, F, I), (K, F), (K, O, F), (K, O); B
# instead of K for examples.
Projections = tuple[Tensor, Tensor, Tensor, Tensor]


class BottleneckInventory(Inventory):
    r"""K networks with a narrow hidden layer, :math:`f_k(h) = s\,(U_k\,a(D_k h + b_k) + c_k)`.

    With mixing weights w, ``mix="factors"`` adds to the block's output the network of averaged
    parameters, as the code of Polytropon does with LoRA; ``"outputs"`` adds
    :math:`\sum_k w_k f_k(h)`, which computes all K networks. Token routing adds
    :math:`\sum_e g_e f_e(h)`.

    Each of several ``stages`` normalises the mixing weights over its skills,
    :math:`w_k / \sum_{j} w_j`; a stage whose weights are all 0 adds nothing.

    Args:
        hidden_features: Width of the bottleneck.
        activation: Activation between the two projections.
        parallel: True: read the block's input; false: read its output (sequential adapter).
        scale: Factor on the change.
        layer_norm: Whether to normalise the adapter's input.
        mix: Quantity averaged over the skills: parameters (``"factors"``) or ``"outputs"``.
        stages: Numbers of skills of each stage, which sum to n_skills. A stage reads and changes
            the output of the previous one, as a task's adapter on top of a language's (MAD-X).

    References:
        Stages: Pfeiffer, Vulić, Gurevych and Ruder, *MAD-X: An Adapter-Based Framework for
        Multi-Task Cross-Lingual Transfer*, EMNLP 2020, arXiv:2005.00052.
    """

    lacks: ClassVar = {
        **NO_WEIGHTS,
        "takes_signed_weights": (
            "stages",
            "each stage normalises its routing weights, which can be negative with this router; "
            "use another router.kind, or remove {path}.stages",
        ),
    }
    section_defaults: ClassVar = {"parallel": False}
    uses = ("task", "token")
    attachment_point = "block"
    adapter_format = "ADAPTERHUB"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        hidden_features: PositiveInt = 64,
        activation: ActivationSetting = "relu",
        parallel: bool = True,
        scale: Positive = 1.0,
        layer_norm: bool = False,
        mix: Annotated[str, OneOf("factors", "outputs")] = "factors",
        stages: Annotated[Sequence[PositiveInt], MinLen(2)] | None = None,
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        stages = (n_skills,) if stages is None else tuple(stages)
        if min(stages, default=0) < 1 or sum(stages) != n_skills:
            raise ValueError(
                f"stages ({list(stages)}) must be positive and sum to n_skills ({n_skills})"
            )
        if len(stages) > 1 and parallel:
            raise ValueError(f"parallel must be false for several stages ({list(stages)})")
        self.stages = stages
        if len(stages) > 1:
            self.uses = ("task",)
        self.reads = "input" if parallel else "output"
        self.read_features = in_features if parallel else out_features
        self.hidden_features = hidden_features
        self.activation = activation_of(activation)
        self.scale, self.layer_norm, self.mix = scale, layer_norm, mix

    @abstractmethod
    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        """Return the projections and biases of every skill, or `averaged` by weights."""

    def merge(self, weights: Float[Tensor, "B 1 K"]) -> Merged:
        parts = []
        for own in self._shares(weights):
            parts += (own[:, 0],) if self.mix == "outputs" else self.projections(own)
        return tuple(parts)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        n_parts = len(merged) // len(self.stages)
        for first in range(0, len(merged), n_parts):
            y = self._add(x, y, merged[first : first + n_parts])
        return y

    def _shares(self, weights: Float[Tensor, "B 1 K"]) -> list[Float[Tensor, "B 1 K"]]:
        """Return the mixing weights of each stage; the skills of other stages have weight 0."""
        if len(self.stages) == 1:
            return [weights]
        shares, before = [], 0
        for part in weights.split(self.stages, dim=-1):
            total = part.sum(-1, keepdim=True)
            share = part / total.where(total != 0, 1)
            behind = self.n_skills - before - part.shape[-1]
            shares.append(nn.functional.pad(share, (before, behind)))
            before += part.shape[-1]
        return shares

    def _add(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        h, y = self._read(x if self.reads == "input" else y, dtype), y.to(dtype)
        if self.mix == "factors":
            down, down_bias, up, up_bias = (part.to(dtype) for part in merged)
            hidden = self.activation(torch.baddbmm(down_bias.unsqueeze(1), h, down.mT))
            change = torch.baddbmm(up_bias.unsqueeze(1), hidden, up.mT)
            return torch.add(y, change, alpha=self.scale)
        (weights,) = (part.to(dtype) for part in merged)
        down, down_bias, up, up_bias = (part.to(dtype) for part in self.projections())
        hidden = self._hidden(h, down, down_bias)
        hidden = (hidden * weights[:, None, :, None]).flatten(2)
        # (B, L, K F) · (K F, O): the sum over skills is part of the product.
        change = hidden @ up.mT.flatten(0, 1) + (weights @ up_bias).unsqueeze(1)
        return torch.add(y, change, alpha=self.scale)

    def dispatch(
        self, x: Float[Tensor, "N features"], assignment: Assignment
    ) -> Float[Tensor, "N O"]:
        work = sort_by_expert(assignment)
        down, down_bias, up, up_bias = self.projections()
        rows = self._read(x, x.dtype)[work.tokens]
        hidden = self.activation(grouped_linear(rows, down, down_bias, work.counts))
        change = grouped_linear(hidden, up, up_bias, work.counts)
        return self.scale * combine(change, work, len(x))

    def hidden_units(self, x: Inputs, y: Outputs) -> Float[Tensor, "B L K r"]:
        """Return the hidden units of every adapter, and a 1 that multiplies the last bias."""
        if len(self.stages) > 1:
            raise NotImplementedError("adapters in stages cannot be fused (skills.stages)")
        dtype = active_dtype(x)
        h = self._read(x if self.reads == "input" else y, dtype)
        down, down_bias, _, _ = (part.to(dtype) for part in self.projections())
        return nn.functional.pad(self._hidden(h, down, down_bias), (0, 1), value=1.0)

    def last_product(self) -> Float[Tensor, "K O r"]:
        """Return the up-projections, each with its bias as the last column."""
        _, _, up, up_bias = self.projections()
        return self.scale * torch.cat([up, up_bias.unsqueeze(-1)], dim=-1)

    def _hidden(self, h: Tensor, down: Tensor, down_bias: Tensor) -> Float[Tensor, "B L K F"]:
        hidden = nn.functional.linear(h, down.flatten(0, 1), down_bias.flatten())
        return self.activation(hidden).unflatten(-1, (self.n_skills, -1))

    def _read(self, h: Tensor, dtype: torch.dtype) -> Tensor:
        return (
            nn.functional.layer_norm(h, h.shape[-1:]).to(dtype) if self.layer_norm else h.to(dtype)
        )


def averaged(parts: Projections, weights: Float[Tensor, "B 1 K"] | None) -> Projections:
    """Return the projections of each example's mixture; without weights those of every skill."""
    return tuple(part if weights is None else mix_blocks(part, weights) for part in parts)  # type: ignore[return-value]


class AdapterInventory(BottleneckInventory):
    r"""K bottleneck adapters: two projections with biases, and an activation between them.

    ==================  ==================================================================
    Houlsby             after attention and feed-forward blocks
    Pfeiffer            after feed-forward blocks only
    parallel            parallel to a block, reading its input
    scaled parallel     parallel to feed-forward blocks, with the factor 4
    ==================  ==================================================================

    As in the survey of He et al., skills read the block's output or its input. In the library
    `adapters`, and the release of AdapterFusion, a Pfeiffer adapter reads the sum of output and
    residual, after the norm if there is one, and a parallel adapter reads the residual. For equal
    inputs the changes are equal.

    Args:
        deviation: Standard deviation of the initial weights of both projections, drawn from a
            normal distribution cut at two deviations; biases start at 0. By default the first
            projection starts as `nn.Linear` does and the second at 0, so that nothing changes.

    References:
        Houlsby et al., *Parameter-Efficient Transfer Learning for NLP*, ICML 2019,
        arXiv:1902.00751. Pfeiffer et al., *AdapterFusion*, EACL 2021, arXiv:2005.00247. Parallel
        and scaled: He et al., *Towards a Unified View of Parameter-Efficient Transfer Learning*,
        ICLR 2022, arXiv:2110.04366. Averaged parameters: Chronopoulou et al., *AdapterSoup*,
        arXiv:2302.07027. As experts: Wang et al., *AdaMix*, EMNLP 2022,
        arXiv:2205.12410.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        deviation: Positive | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, **settings)
        self.deviation = deviation
        self.neutral = deviation is None
        sizes = self.read_features, self.hidden_features, out_features, n_skills
        self.blocks = FeedForwardExperts(*sizes, activation=self.activation, bias=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.blocks.reset_parameters()
        nn.init.zeros_(self.blocks.down)
        if (size := self.deviation) is not None:
            for projection in (self.blocks.up, self.blocks.down):
                nn.init.trunc_normal_(projection, std=size, a=-2 * size, b=2 * size)

    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        parts: Any = (
            *(self.blocks.up, self.blocks.up_bias),
            *(self.blocks.down, self.blocks.down_bias),
        )
        return averaged(parts, weights)


class AdapterExperts(AdapterInventory):
    """Bottleneck adapters parallel to feed-forward blocks."""

    internal = ("activation", "parallel", "scale", "layer_norm", "mix", "stages", "deviation")


class SparseAdapterInventory(BottleneckInventory):
    r"""K adapters with sparse projections, whose entries are drawn for each skill.

    Only the values of these entries are parameters, so an equal number of them allows a wider
    bottleneck (Large-Sparse). Biases are dense. Entries are chosen at random per projection, as in
    the release's scripts: the up-projection starts at 0, so scores by magnitude or gradient, which
    the release also has, would all be 0.

    Args:
        sparsity: Fraction of the entries of both projections that stay 0.

    References:
        He, Ding, Dong, Zhang and Tao, *SparseAdapter: An Easy Approach for Improving the
        Parameter-Efficiency of Adapters*, Findings of EMNLP 2022, arXiv:2210.04284.
    """

    undecayed = ("down_bias", "up_bias")
    down_places: Tensor
    up_places: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        hidden_features: PositiveInt = 256,
        sparsity: Fraction = 0.75,
        **settings: Any,
    ) -> None:
        settings["hidden_features"] = hidden_features
        super().__init__(in_features, out_features, n_skills, **settings)
        self.sparsity = sparsity

        def drawn(*shape: int) -> Tensor:
            supports = (random_support({"": shape}, 1 - sparsity)[""] for _ in range(n_skills))
            return torch.stack([*supports])

        self.register_buffer("down_places", drawn(hidden_features, self.read_features))
        self.register_buffer("up_places", drawn(out_features, hidden_features))
        self.down = nn.Parameter(torch.empty(self.down_places.shape))
        self.up = nn.Parameter(torch.empty(self.up_places.shape))
        self.down_bias = nn.Parameter(torch.empty(n_skills, hidden_features))
        self.up_bias = nn.Parameter(torch.empty(n_skills, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.read_features**-0.5
        nn.init.uniform_(self.down, -bound, bound)
        for part in (self.up, self.down_bias, self.up_bias):
            nn.init.zeros_(part)

    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        n_hidden = self.hidden_features
        down = spread(self.down, self.down_places, n_hidden * self.read_features)
        up = spread(self.up, self.up_places, self.out_features * n_hidden)
        parts = (
            *(down.unflatten(1, (n_hidden, -1)), self.down_bias),
            *(up.unflatten(1, (-1, n_hidden)), self.up_bias),
        )
        return averaged(parts, weights)
