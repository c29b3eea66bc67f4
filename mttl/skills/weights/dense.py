"""Dense skills: full weight changes, for small layers and as the upper bound of the others."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.aggregation.products import active_dtype
from mttl.io.errors import require_one_of
from mttl.plugins.part_settings import OneOf
from mttl.skills.inventory import Inventory, Merged, draw, require_divisible


class DenseInventory(Inventory):
    r"""Full weight changes.

    K full changes of a linear layer: :math:`y = W_0 x + \sum_k w_k \Delta_k x`.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K.
        n_heads: Heads H: blocks of output features that are mixed apart; must divide O.
        mix: Average the changes, or the outputs. ``"deltas"`` builds one weight change per example
            (less arithmetic while an example has more positions than there are skills),
            ``"outputs"`` one output per skill (less memory where the layer is large and the text
            short).
        init: How skills begin: without effect (``"zero"``), or drawn (``"kaiming"``).

    Raises:
        ValueError: If a size is not positive, H does not divide O, or a word is unknown.

    References:
        Ponti et al., *Combining Modular Skills in Multitask Learning*, 2022, arXiv:2202.13914,
        section 3 (dense skills in the BabyAI ablation).
    """

    internal = ("init",)
    uses = ("task", "token", "composed")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        n_heads: int = 1,
        mix: Annotated[str, OneOf("deltas", "outputs")] = "deltas",
        init: str = "zero",
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        require_divisible(n_heads, out_features=out_features)
        require_one_of(("deltas", "outputs"), mix=mix)
        self.mix = mix
        self.init = init
        self.change = nn.Parameter(torch.empty(n_skills, out_features, in_features))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "DenseInventory":
        """Return skills whose changes have the tensor's own shape."""
        made: Any = super().of_tensor(shape, n_skills, **settings)
        made.change = nn.Parameter(made.change.detach().view(n_skills, *shape))
        return made

    def reset_parameters(self) -> None:
        """Re-initialise the changes."""
        draw(self.change, self.init, self.in_features)

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Return each example's weight change, or the weights themselves."""
        if self.mix == "deltas":
            return (mix_blocks(self.change, weights),)
        return (weights,)

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Add the change to the base output."""
        dtype = active_dtype(x)
        x = x.to(dtype)
        if self.mix == "deltas":
            return torch.baddbmm(y.to(dtype), x, merged[0].to(dtype).transpose(1, 2))
        weights = merged[0].to(dtype)
        outputs = torch.einsum("bli,koi->blko", x, self.change.to(dtype))
        blocks = outputs.unflatten(-1, (self.n_heads, -1))  # (B, L, K, H, O / H)
        return y + torch.einsum("blkho,bhk->blho", blocks, weights).flatten(2)

    def changes(self) -> Float[Tensor, "K *shape"]:
        """Return what each skill alone adds to the base weight."""
        return self.change

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"{super().extra_repr()}, mix={self.mix}"
