"""K skills of one tensor of parameters, of any shape: dense, sparse, or low-rank changes.

Each begins either without effect (``init="zero"``) or drawn at random as layers are
(``init="kaiming"``), for networks whose base and skills are trained from scratch together.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_deltas
from mttl.skills.supports import random_indices, spread

INITS = ("zero", "kaiming")


class TensorSkills(nn.Module, ABC):
    r"""K changes of one tensor: :math:`\theta_t = \theta_0 + \sum_k w_{tk} \phi_k`.

    Args:
        shape: Shape of the tensor.
        n_skills: Skills K.
        init: ``"zero"`` or ``"kaiming"``: tensors of two or more axes are drawn from the uniform
            distribution in which `nn.Linear` and `nn.Conv2d` draw their weights; vectors (biases,
            scales of normalisations) begin at 0 in both cases.

    Raises:
        ValueError: If ``n_skills`` is not positive or ``init`` is unknown.

    Attributes:
        smallest_ndim: Tensors of fewer axes cannot have skills of this kind.
    """

    smallest_ndim = 0

    def __init__(self, shape: Sequence[int], n_skills: int, init: str) -> None:
        super().__init__()
        if n_skills < 1:
            raise ValueError(f"n_skills ({n_skills}) must be at least 1")
        if init not in INITS:
            raise ValueError(f"init ('{init}') must be 'zero' or 'kaiming'")
        self.shape = torch.Size(shape)
        self.n_skills = n_skills
        self.init = init

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw the skills anew."""

    @abstractmethod
    def merge(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return the tensor of every task.

        Args:
            base: What the skills change.
            weights: Mixing weights of the tasks.
        """

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"shape={tuple(self.shape)}, n_skills={self.n_skills}, init={self.init}"


class DenseSkills(TensorSkills):
    """Skills that change every entry.

    Args:
        shape: Shape of the tensor.
        n_skills: Skills K.
        init: As for `TensorSkills`.

    References:
        Ponti et al., *Combining Modular Skills in Multitask Learning*, 2022, arXiv:2202.13914,
        section 3 (the variant without sparsity).
    """

    def __init__(self, shape: Sequence[int], n_skills: int, *, init: str = "zero") -> None:
        super().__init__(shape, n_skills, init)
        self.change = nn.Parameter(torch.empty(n_skills, *shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the skills anew."""
        _draw(self.change, self.init, _fan_in(self.shape))

    def merge(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return the tensor of every task."""
        changes = self.change.view(self.n_skills, -1)
        return torch.addmm(base.flatten(), weights, changes).view(-1, *self.shape)


class SparseSkills(TensorSkills):
    """Skills that change few entries, each its own, chosen at random and for good.

    Only the values of these entries are parameters, so that the state of an optimizer is as small
    as they are. Every tensor keeps at least one entry per skill.

    Args:
        shape: Shape of the tensor.
        n_skills: Skills K.
        sparsity: Fraction of entries that a skill leaves alone.
        init: As for `TensorSkills`.

    Raises:
        ValueError: If ``sparsity`` lies outside [0, 1).

    References:
        Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual
        Transfer*, ACL 2022, arXiv:2110.07560; with a random choice of entries: Ponti et al., EACL
        2023, arXiv:2202.13914, section 2.4.
    """

    indices: Tensor

    def __init__(
        self, shape: Sequence[int], n_skills: int, *, sparsity: float = 0.9, init: str = "zero"
    ) -> None:
        super().__init__(shape, n_skills, init)
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity ({sparsity}) must lie in [0, 1)")
        self.sparsity = sparsity
        size = math.prod(shape)
        n_changed = max(1, round((1 - sparsity) * size))
        chosen = [random_indices(size, n_changed) for _ in range(n_skills)]
        self.register_buffer("indices", torch.stack(chosen))  # (K, n), into the flat tensor
        self.values = nn.Parameter(torch.empty(n_skills, n_changed))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the values anew; the entries stay."""
        _draw(self.values, self.init, _fan_in(self.shape))

    def merge(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return the tensor of every task."""
        # Spread out for the length of a pass, so that one matrix product mixes all of them.
        changes = spread(self.values, self.indices, math.prod(self.shape))
        return torch.addmm(base.flatten(), weights, changes).view(-1, *self.shape)

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"{super().extra_repr()}, sparsity={self.sparsity:g}"


class LowRankSkills(TensorSkills):
    r"""Skills of low rank, :math:`\phi_k = s\,B_k A_k^\top`, the tensor seen as a matrix (O, I).

    I collects all axes but the first: those of a convolution's filter, for example.

    Args:
        shape: Shape of the tensor, of two or more axes.
        n_skills: Skills K.
        rank: Rank r of each skill.
        scale: The factor s; 1 / rank by default.
        init: ``"zero"`` draws A and sets B to 0; ``"kaiming"`` draws both.

    Raises:
        ValueError: If the tensor has fewer than two axes, or the rank is not positive.

    References:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022,
        arXiv:2106.09685.
    """

    smallest_ndim = 2

    def __init__(
        self,
        shape: Sequence[int],
        n_skills: int,
        *,
        rank: int = 16,
        scale: float | None = None,
        init: str = "zero",
    ) -> None:
        super().__init__(shape, n_skills, init)
        if len(shape) < self.smallest_ndim:
            raise ValueError(f"a tensor of shape {tuple(shape)} is no matrix: it has no low rank")
        if rank < 1:
            raise ValueError(f"rank ({rank}) must be at least 1")
        self.rank = rank
        self.scale = 1 / rank if scale is None else scale
        self.down = nn.Parameter(torch.empty(n_skills, math.prod(shape[1:]), rank))
        self.up = nn.Parameter(torch.empty(n_skills, shape[0], rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the skills anew."""
        _draw(self.down, "kaiming", self.down.shape[1])
        _draw(self.up, self.init, self.rank)

    def merge(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return the tensor of every task."""
        scaled = self.scale * weights  # by far the smallest tensor the scale can go into
        changes = mix_deltas(self.down, self.up, scaled.unsqueeze(1))
        return base + changes.view(-1, *self.shape)

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"{super().extra_repr()}, rank={self.rank}, scale={self.scale:g}"


def _fan_in(shape: torch.Size) -> int | None:
    """Return how many inputs an output sums over; None for a vector, which sums over none."""
    return math.prod(shape[1:]) if len(shape) > 1 else None


def _draw(tensor: Tensor, init: str, fan_in: int | None) -> None:
    if init == "zero" or fan_in is None:
        nn.init.zeros_(tensor)
    else:
        bound = 1 / math.sqrt(fan_in)
        nn.init.uniform_(tensor, -bound, bound)
