"""Dense skills: full weight changes, for small layers and as the upper bound of the others."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.products import active_dtype
from mttl.plugins.part_settings import OneOf
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights, draw


class DenseInventory(Inventory):
    r"""Full weight changes.

    K full changes of a linear layer: :math:`y = W_0 x + \sum_k w_k \Delta_k x`.

    Args:
        n_heads: Heads H: blocks of output features that are mixed apart.
        mix: Average the changes, or the outputs. ``"deltas"`` builds one weight change per example
            (less arithmetic while an example has more positions than there are skills),
            ``"outputs"`` one output per skill (less memory where the layer is large and the text
            short).
        init: How skills begin: without effect (``"zero"``), or drawn (``"kaiming"``).

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
        self.mix, self.init = mix, init
        self.change = nn.Parameter(torch.empty(n_skills, out_features, in_features))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "DenseInventory":
        """Return skills whose changes have the tensor's own shape."""
        made: Any = super().of_tensor(shape, n_skills, **settings)
        made.change = nn.Parameter(made.change.detach().view(n_skills, *shape))
        return made

    def reset_parameters(self) -> None:
        draw(self.change, self.init, self.in_features)

    def merge(self, weights: Weights) -> Merged:
        return super().merge(weights) if self.mix == "deltas" else (weights,)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        if self.mix == "deltas":
            return super().combine(x, y, merged)
        dtype = active_dtype(x)
        outputs = torch.einsum("bli,koi->blko", x.to(dtype), self.change.to(dtype))
        blocks = outputs.unflatten(-1, (self.n_heads, -1))  # (B, L, K, H, O / H)
        return y + torch.einsum("blkho,bhk->blho", blocks, merged[0].to(dtype)).flatten(2)

    def changes(self) -> Float[Tensor, "K *shape"]:
        return self.change
