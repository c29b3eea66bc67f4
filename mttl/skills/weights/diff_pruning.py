"""Diff pruning: dense changes under learned masks with an L0 penalty."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Gt, Le, Len
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import NonNegative, OneOf, Positive
from mttl.skills.inventory import Inventory, Merged, Weights

# As in the released code: outside, the gradient vanishes in single precision.
DRAWN = 1e-4


class DiffPruningInventory(Inventory):
    r"""Dense changes under learned masks, with a penalty on each entry that changes.

    :math:`y = W_0 x + \sum_k w_k (z_k \odot \delta_k) x`. In training, a mask is sampled from the
    hard concrete distribution in every pass,

    .. math:: s = \sigma((\log u - \log(1 - u) + \alpha) / \tau), \quad
              z = \min(1, \max(0, s (r - l) + l)), \quad u \sim U(0, 1),

    and in evaluation :math:`s = \sigma(\alpha)`, with the same stretch. The expected number
    of entries that change, :math:`\sum \sigma(\alpha - \tau \log(-l / r))`, times ``penalty``, is
    added to the loss. With groups, z is the product of the masks of entry and group (structured
    diff pruning; the paper's groups are whole matrices, here ``"layer"``). The paper has τ = 1.
    In evaluation, ``keep`` keeps the largest changes of each layer; the paper does so once over all
    layers and then trains further. It masks every parameter; here only weights of linear layers.

    Logits are stored divided by ``rate``, so that they move ``rate`` times as fast under Adam.

    Args:
        penalty: Weight of the L0 penalty in the loss, per changed entry.
        temperature: Temperature of the samples in training; the lower, the more masks are 0 or 1.
        stretch: Limits to which masks are stretched before they are clipped to [0, 1].
        start: Initial logit of the masks.
        rate: Learning rate of the mask logits, relative to that of the changes.
        groups: Group of entries with a common additional mask: rows of the weight, or the layer.
        keep: Fraction of the entries of each layer that a skill may change in evaluation.

    References:
        Guo, Rush and Kim, *Parameter-Efficient Transfer Learning with Diff Pruning*, ACL 2021,
        arXiv:2012.07463. Louizos, Welling and Kingma, *Learning Sparse Neural Networks through L0
        Regularization*, ICLR 2018, arXiv:1712.01312.
    """

    undecayed = ("logits", "group_logits")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        penalty: NonNegative = 1e-6,
        temperature: Positive = 1.0,
        stretch: Annotated[Sequence[float], Len(2, 2)] = (-1.5, 1.5),
        start: float = 5.0,
        rate: Positive = 1.0,
        groups: Annotated[str, OneOf("none", "rows", "layer")] = "none",
        keep: Annotated[float, Gt(0), Le(1)] = 1.0,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        low, high = stretch
        if not low < 0 or not high > 1:
            raise ValueError(f"stretch ({low}, {high}) must start below 0 and end above 1")
        self.penalty, self.temperature, self.stretch = penalty, temperature, (low, high)
        self.start, self.rate, self.groups, self.keep = start, rate, groups, keep
        self.change = nn.Parameter(torch.empty(n_skills, out_features, in_features))
        self.logits = nn.Parameter(torch.empty_like(self.change))
        if groups != "none":
            shape = (n_skills, out_features if groups == "rows" else 1, 1)
            self.group_logits = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.change)
        for logits in self._all_logits():
            nn.init.constant_(logits, self.start / self.rate)

    def merge(self, weights: Weights) -> Merged:
        changes = self.mask(drawn=True) * self.change if self.training else self.changes()
        return (mix_blocks(changes, weights),)

    def mask(self, *, drawn: bool = False) -> Float[Tensor, "K O I"]:
        """Return the masks: those of evaluation, or samples."""
        low, high = self.stretch
        masks = []
        for logits in self._all_logits():
            shifted = self.rate * logits
            if drawn:
                wide = torch.promote_types(logits.dtype, torch.float32)
                noise = torch.rand_like(logits, dtype=wide).clamp(DRAWN, 1 - DRAWN).logit()
                shifted = (shifted + noise.to(logits.dtype)) / self.temperature
            masks.append((shifted.sigmoid() * (high - low) + low).clamp(0, 1))
        return math.prod(masks[1:], start=masks[0])

    def changes(self) -> Float[Tensor, "K O I"]:
        """Return the change of the base weight by each skill, under the masks of evaluation."""
        changes = self.mask() * self.change
        if self.keep == 1:
            return changes
        flat = changes.flatten(1)
        best = flat.abs().topk(max(1, round(self.keep * flat.shape[1])), dim=1).indices
        return torch.zeros_like(flat).scatter(1, best, flat.gather(1, best)).view_as(changes)

    def expected_entries(self) -> Float[Tensor, "K"]:
        """Return the expected number of entries that each skill changes in training."""
        low, high = self.stretch
        shift = self.temperature * math.log(-low / high)
        first, *groups = ((self.rate * logits - shift).sigmoid() for logits in self._all_logits())
        both = math.prod(groups, start=first)
        return both.flatten(1).sum(1, dtype=torch.promote_types(both.dtype, torch.float32))

    def penalties(self) -> dict[str, Tensor]:
        return {"l0": self.penalty * self.expected_entries().sum()}

    def facts(self) -> dict[str, Tensor]:
        return {"density": (self.mask() > 0).float().mean().clamp(max=self.keep)}

    def _all_logits(self) -> list[Tensor]:
        return [self.logits] if self.groups == "none" else [self.logits, self.group_logits]
