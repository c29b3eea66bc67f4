"""Supermasks of a layer together with sparse changes of the weights that they keep."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.aggregation.packed_weights import dense_weight
from mttl.plugins.part_settings import Fraction
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights
from mttl.skills.weights.sparse import SparseInventory, fixed_by_file
from mttl.skills.weights.supermask import START, SupermaskInventory, linear_of_each


class MaskedSparseInventory(Inventory):
    r"""K scores per weight, as of `SupermaskInventory`, and sparse changes of the kept weights.

    :math:`y = (W_0 \odot b + \Phi \odot b)\,x` with :math:`b = \mathbb 1[\sum_k w_k S_k \ge \tau]`
    and :math:`\Phi = \sum_k w_k \Phi_k`, whose supports are those of `SparseInventory`. Fresh
    skills change nothing.

    With a ``support`` of ``mttl sparse --form masked``, the skills start as its pruned network: its
    kept weights are the support, and the scores of the others start below the threshold.

    Args:
        threshold: Smallest score of a kept weight; scores start at 0.01.
        sparsity: Fraction of entries that a skill does not change.
        support: ``"random"``, or a file of ``mttl sparse`` with the support, and a mask if masked.

    References:
        Pfeiffer, Ruder, Vulić and Ponti, *Modular Deep Learning*, TMLR 2023, arXiv:2302.11529:
        sparse subnetworks :math:`\theta \odot b` and sparse changes :math:`\theta + \phi`.
    """

    reads_weight = True
    refuses: ClassVar = fixed_by_file(sparsity=0.9)
    lacks: ClassVar = {
        "shards": ("support != random", "one process loads all weights; set trainer.strategy: ddp")
    }
    pruned: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        threshold: float = 5e-3,
        sparsity: Fraction = 0.9,
        n_heads: int = 1,
        support: str = "random",
    ) -> None:
        sizes = in_features, out_features, n_skills
        super().__init__(*sizes, n_heads)
        self.support = support
        self.mask = SupermaskInventory(*sizes, threshold=threshold, n_heads=n_heads)
        self.difference = SparseInventory(*sizes, sparsity=sparsity, n_heads=n_heads, mix="deltas")
        # Whether only the support is kept at the start; a tensor, so that it is saved.
        self.register_buffer("pruned", torch.zeros(1, dtype=torch.bool))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.difference.reset_parameters()
        self.mask.reset_parameters()
        if self.pruned:
            self.mask.scores.fill_(2 * self.mask.threshold - START)
            self.mask.scores.flatten(1).scatter_(1, self.difference.indices, START)

    def set_support(self, entries: Int[Tensor, "n"], *, masked: bool = False) -> None:
        self.difference.set_support(entries)
        self.pruned.fill_(masked)
        self.reset_parameters()

    def merge(self, weights: Weights) -> Merged:
        return *self.mask.merge(weights), mix_blocks(self.difference.changes(), weights)

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        mask, change = merged
        return linear_of_each(x, (dense_weight(base) + change) * mask, base.bias)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        mask, change = self.merge(weights[None])
        return ((weight + change) * mask)[0], bias
