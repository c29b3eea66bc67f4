"""Dense skills: full weight changes, for small layers and as an upper bound."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.skills.inventory import Inventory, draw


class DenseInventory(Inventory):
    r"""Full weight changes: :math:`y = W_0 x + \sum_k w_k \Delta_k x`, with ``init`` as in `draw`.

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
        init: str = "zero",
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.init = init
        self.change = nn.Parameter(torch.empty(n_skills, out_features, in_features))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> "DenseInventory":
        made: Any = super().of_tensor(shape, n_skills, **settings)
        made.change = nn.Parameter(made.change.detach().view(n_skills, *shape))
        return made

    def reset_parameters(self) -> None:
        draw(self.change, self.init, self.in_features)

    def changes(self) -> Float[Tensor, "K *shape"]:
        return self.change
