"""Low-rank skills that share their factors and differ between them (MTL-LoRA)."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inventory import Inventory, Merged, Weights, draw
from mttl.skills.weights.lora import LoRAInventory


class MTLLoRAInventory(LoRAInventory):
    r"""K small transforms between one down-projection and n up-projections of a layer (MTL-LoRA).

    Skill k changes the weight by
    :math:`s \sum_i \mathrm{softmax}(c_k / \tau)_i B_i \Lambda_k A^\top`. All skills share A (I, r)
    and the :math:`B_i` (O, r). A skill is a matrix :math:`\Lambda_k` (r, r), which starts as the
    identity, and the n logits :math:`c_k`. A mixture is the weighted sum of the changes, times the
    sum of the weights if they are not normalised.

    The paper's model has a skill per task (router ``private``). Adaptation trains
    :math:`\Lambda_k` and :math:`c_k`, and keeps A and the :math:`B_i`, unless it trains the
    backbone or starts from scratch.

    Args:
        n_up: Number n of up-projections.
        temperature: Temperature τ of the softmax.

    References:
        Yang, Muhtar, Shen, Zhan, Liu, Wang, Sun, Deng, Sun, Zhang, Chen and Tong, *MTL-LoRA:
        Low-Rank Adaptation for Multi-Task Learning*, 2024, arXiv:2410.09437.
    """

    lacks: ClassVar = {"mixes_by_token": Inventory.lacks["mixes_by_token"]}
    internal = ("shared_down", "mix", "init")
    uses = ("task",)
    undecayed = ("transforms", "logits")
    common_parameters = ("down", "up")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        n_up: PositiveInt = 3,
        temperature: Positive = 0.1,
        **settings: Any,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, shared_down=True, **settings)
        self.n_up, self.temperature = n_up, temperature
        self.up = nn.Parameter(torch.empty(n_up, out_features, self.rank))
        self.transforms = nn.Parameter(torch.empty(n_skills, self.rank, self.rank))
        self.logits = nn.Parameter(torch.empty(n_skills, n_up))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.transforms.copy_(torch.eye(self.rank))
        draw(self.logits, "kaiming", self.n_up)

    def columns(self) -> tuple[Float[Tensor, "K I r"], Float[Tensor, "K O r"]]:
        """Return both factors of every skill, the second one with its transform."""
        return self.down.expand(self.n_skills, -1, -1), (self._parts().mT @ self._ups()).mT

    def merge(self, weights: Weights) -> Merged:
        if self.n_heads > 1:
            return super().merge(weights)
        # Mix the small parts, so that no factor of size O is made for every skill.
        parts = mix_blocks(self._parts(), self.scale * weights)
        return weights.sum(-1, keepdim=True) * self.down, (parts.mT @ self._ups()).mT

    def _parts(self) -> Float[Tensor, "K q r"]:
        """Return each skill's transform, times its weight of each up-projection."""
        chosen = (self.logits / self.temperature).softmax(-1)
        return (chosen[:, :, None, None] * self.transforms[:, None]).flatten(1, 2)

    def _ups(self) -> Float[Tensor, "q O"]:
        return self.up.mT.flatten(0, 1)
