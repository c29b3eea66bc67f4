"""One task's mixture as a pair of low-rank factors: exact for LoRA, otherwise by SVD."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.mix import mix_factors
from mttl.skills.inventory import Inventory
from mttl.skills.weights.lora import LoRAInventory


@dataclass(frozen=True)
class LowRank:
    """A weight change ``up @ downᵀ`` with LoRA's factors A (down) and B (up); B has the scale."""

    down: Float[Tensor, "I r"]
    up: Float[Tensor, "O r"]
    dropped: float = 0.0  # Frobenius norm of the truncated part

    @property
    def rank(self) -> int:
        """The number of columns of the factors."""
        return self.down.shape[1]

    @property
    def sizes(self) -> tuple[int, int]:
        """The input and output features."""
        return self.down.shape[0], self.up.shape[0]

    @property
    def norm(self) -> float:
        """The Frobenius norm of the change, including the truncated part."""
        down, up = self.down.double(), self.up.double()
        kept = ((down.t() @ down) * (up.t() @ up)).sum()  # ‖B Aᵀ‖² without the product
        return (float(kept) + self.dropped**2) ** 0.5

    def padded(self, rank: int) -> "LowRank":
        """Return the change with columns of zeros up to a rank."""
        extra = (0, rank - self.rank)
        down, up = (torch.nn.functional.pad(factor, extra) for factor in (self.down, self.up))
        return LowRank(down, up, self.dropped)

    def trimmed(self) -> "LowRank":
        """Return the change without columns of zeros at the end."""
        used = (self.down.any(0) | self.up.any(0)).nonzero()
        rank = int(used.max()) + 1 if len(used) else 0
        return LowRank(self.down[:, :rank], self.up[:, :rank], self.dropped)


@torch.no_grad()
def mixture_factors(inventory: LoRAInventory, weights: Float[Tensor, "H K"]) -> LowRank:
    r"""Return the exact factors of one task's mixture of low-rank skills.

    ``mix="factors"`` has rank r; the blocks of features of all heads form one A and one B.
    ``"deltas"`` and ``"outputs"`` have rank r times the number of skills in use:
    :math:`\sum_k w_k B_k A_k^\top = [w_1 B_1 \dots w_K B_K][A_1 \dots A_K]^\top`; with heads, block
    h of the output features of :math:`B_k` has the weight :math:`w_{hk}`. An initialisation from
    the layer's weight doubles the ranks.
    """
    downs, ups = inventory.columns()
    if inventory.mix == "factors":
        down, up = mix_factors(downs, ups, weights[None])
        return LowRank(down[0], inventory.scale * up[0])
    used = weights.any(dim=0).nonzero().flatten()
    downs, ups = downs[used], ups[used]
    by_feature = weights[:, used].repeat_interleave(inventory.out_features // len(weights), dim=0)
    ups = inventory.scale * by_feature.t()[:, :, None] * ups
    return LowRank(downs.transpose(0, 1).flatten(1), ups.transpose(0, 1).flatten(1))


@torch.no_grad()
def truncate(down: Float[Tensor, "I q"], up: Float[Tensor, "O q"], rank: int) -> LowRank:
    """Return the best approximation of ``up @ downᵀ`` of a given rank, without the product.

    With ``A = Q R`` and ``B = P S`` the product's singular values are those of the small matrix
    ``S Rᵀ``. The result is optimal in the Frobenius norm (Eckart and Young, 1936).
    """
    in_basis, in_rest = torch.linalg.qr(down.double())
    out_basis, out_rest = torch.linalg.qr(up.double())
    left, values, right = torch.linalg.svd(out_rest @ in_rest.t(), full_matrices=False)
    return _cut(out_basis @ left, values, in_basis @ right.t(), rank, down.dtype)


@torch.no_grad()
def factorise(delta: Float[Tensor, "O I"], rank: int) -> LowRank:
    """Return the best factors of a given rank for any weight change."""
    left, values, right = torch.linalg.svd(delta.double(), full_matrices=False)
    return _cut(left, values, right.t(), rank, delta.dtype)


def mixture(
    inventory: Inventory, weights: Float[Tensor, "H K"], rank: int | None = None
) -> LowRank:
    """Return one task's mixture as factors, exact by default.

    Raises:
        ValueError: If the kind is not low-rank and no rank is given, or the rank is not positive.
        NotImplementedError: If the kind does not add to the base weight.
    """
    if rank is not None and rank < 1:
        raise ValueError(f"rank ({rank}) must be at least 1")
    if not isinstance(inventory, LoRAInventory):
        delta = inventory.delta(weights[None])[0].detach()  # before other errors
        if rank is None:
            raise ValueError(f"changes of {type(inventory).__name__} are not low-rank; set a rank")
        return factorise(delta, rank)
    exact = mixture_factors(inventory, weights)
    if rank is None or exact.rank <= rank:
        return exact
    return truncate(exact.down, exact.up, rank)


def relative_error(parts: list[LowRank]) -> float:
    """Return the norm of the truncated parts of all layers relative to that of the changes."""
    dropped = sum(part.dropped**2 for part in parts)
    return (dropped / sum(part.norm**2 for part in parts)) ** 0.5 if dropped else 0.0


def _cut(
    left: Float[Tensor, "O q"],
    values: Float[Tensor, "q"],
    right: Float[Tensor, "I q"],
    rank: int,
    dtype: torch.dtype,
) -> LowRank:
    root = values[:rank].sqrt()
    down, up = ((basis[:, :rank] * root).to(dtype) for basis in (right, left))
    return LowRank(down, up, dropped=float(values[rank:].norm()))
