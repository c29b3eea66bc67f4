r"""Supports of sparse skills: the entries that they change.

A support is a sorted int64 tensor of indices into the flattened tensor, which may have more than
2³¹ entries. It has the entries with the largest scores (`mttl.sparse.tuning`), or random ones,
which need no tensor of the full size.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.config.enums import check_density


class Units:
    """The partition of a tensor into units that are chosen as a whole, by their mean scores.

    The structure is ``"entries"``; ``"rows"``, the entries with one index of the first axis; or
    ``"blocks"``, squares of the matrix (first axis × all others), smaller at its edges.
    """

    def __init__(self, shape: Sequence[int], structure: str, block: int) -> None:
        self.height = shape[0] if len(shape) > 1 else math.prod(shape)
        self.width = math.prod(shape[1:]) if len(shape) > 1 else 1
        self.high = block if structure == "blocks" else 1
        self.wide = {"entries": 1, "rows": max(1, self.width), "blocks": block}[structure]
        self.across = math.ceil(self.width / self.wide)
        self.count = math.ceil(self.height / self.high) * self.across

    @property
    def trivial(self) -> bool:
        return self.high == self.wide == 1

    def sizes(self, units: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Return the number of entries of units, which is smaller at the edges."""
        high = (self.height - (units // self.across) * self.high).clamp(max=self.high)
        wide = (self.width - (units % self.across) * self.wide).clamp(max=self.wide)
        return high * wide

    def means(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "n"]:
        matrix = scores.detach().reshape(self.height, self.width)
        if self.trivial:
            return matrix.flatten()
        down, right = -self.height % self.high, -self.width % self.wide
        padded = torch.nn.functional.pad(matrix.double(), (0, right, 0, down))
        sums = padded.unflatten(1, (-1, self.wide)).unflatten(0, (-1, self.high)).sum((1, 3))
        return sums.flatten() / self.sizes(torch.arange(self.count, device=scores.device))

    def entries(self, units: Int[Tensor, "n"]) -> Int[Tensor, "m"]:
        """Return the sorted indices of all entries of the units."""
        if self.trivial:
            return units
        device = units.device
        rows = (units // self.across * self.high)[:, None, None]
        columns = (units % self.across * self.wide)[:, None, None]
        rows = rows + torch.arange(self.high, device=device)[:, None]
        columns = columns + torch.arange(self.wide, device=device)
        inside = (rows < self.height) & (columns < self.width)
        return (rows * self.width + columns)[inside].sort().values


# Largest tensor for which a permutation of all indices is drawn.
PERMUTED = 2**22


def random_indices(size: int, n: int, generator: torch.Generator | None = None) -> Int[Tensor, "n"]:
    """Return ``n`` different indices below ``size``, sorted and uniformly drawn."""
    # The other method needs values, which the meta device of the memory planner does not have.
    if size <= PERMUTED or 2 * n > size or torch.get_default_device().type == "meta":
        return torch.randperm(size, generator=generator)[:n].sort().values
    # Draw with replacement until there are enough different ones, then drop some at random.
    found = torch.empty(0, dtype=torch.int64)
    while len(found) < n:
        missing = n - len(found)
        drawn = torch.randint(size, (missing + missing // 8 + 16,), generator=generator)
        found = torch.cat([found, drawn]).unique()
    return found[torch.randperm(len(found), generator=generator)[:n]].sort().values


def random_support(
    shapes: Mapping[str, Sequence[int]],
    density: float,
    *,
    structure: str = "entries",
    block: int = 16,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return a random support of every tensor; arguments are those of `select_support`."""
    check_density(density)
    support = {}
    for name, shape in shapes.items():
        units = Units(shape, structure, block)
        n = max(1, round(density * units.count))
        support[name] = units.entries(random_indices(units.count, n, generator))
    return support


def require_inside(indices: Int[Tensor, "..."], size: int) -> None:
    """Raise ValueError if an index is out of range."""
    if indices.numel() and (indices.min() < 0 or indices.max() >= size):
        found = f"{int(indices.min())} to {int(indices.max())}"
        raise ValueError(f"indices of a support must be in [0, {size}), not {found}")


def select_support(
    scores: Mapping[str, Tensor],
    density: float,
    *,
    scope: str = "global",
    structure: str = "entries",
    block: int = 16,
) -> dict[str, Tensor]:
    """Return the entries with the largest scores; ties are broken by the order of the tensors.

    The density is a fraction of the entries, at least one; of rows or blocks (`Units`), as many are
    chosen as fit into it, and at least one. The scope is all tensors together (``"global"``), which
    leaves tensors without chosen entries out, or every ``"tensor"`` separately.

    Raises:
        ValueError: If a score is NaN, or the density is out of range.
    """
    check_density(density)
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of '{name}' contain NaN")
    support: dict[str, Tensor] = {}
    for part in [{name: scores[name]} for name in scores] if scope == "tensor" else [scores]:
        units = {name: Units(score.shape, structure, block) for name, score in part.items()}
        means = {name: units[name].means(score) for name, score in part.items()}
        budget = max(1, round(density * sum(score.numel() for score in part.values())))
        chosen = _best(means, units, budget)
        support |= {
            name: units[name].entries(places) for name, places in chosen.items() if len(places)
        }
    return support


def spread(
    values: Float[Tensor, "K n"], indices: Int[Tensor, "K n"], size: int
) -> Float[Tensor, "K size"]:
    """Return flat tensors with the given values at the given indices, and 0 elsewhere."""
    return values.new_zeros(len(values), size).scatter(1, indices, values)


def _best(
    scores: Mapping[str, Tensor], units: Mapping[str, Units], budget: int
) -> dict[str, Tensor]:
    """Return the best units of each tensor that together have at most ``budget`` entries."""
    n = min(budget, sum(len(score) for score in scores.values()))
    if not all(unit.trivial for unit in units.values()):  # as many as fit into the budget
        sizes = [units[name].sizes(torch.arange(len(score))) for name, score in scores.items()]
        ranked = torch.cat([score.cpu() for score in scores.values()])
        order = ranked.sort(descending=True, stable=True).indices
        n = max(1, int((torch.cat(sizes)[order].cumsum(0) <= budget).sum()))
    threshold = _nth_largest(list(scores.values()), n)
    above = {name: score > threshold for name, score in scores.items()}
    ties_left = n - sum(int(mask.sum()) for mask in above.values())
    chosen = {}
    for name, score in scores.items():
        equal = (score == threshold).nonzero().flatten()[:ties_left]
        ties_left -= len(equal)
        chosen[name] = torch.cat([above[name].nonzero().flatten(), equal]).sort().values
    return chosen


def _nth_largest(tensors: Sequence[Tensor], n: int) -> Tensor:
    """Return the n-th largest value, by pieces that bound memory and fit kernels that use int32."""
    best: Tensor | None = None
    for piece in (piece for tensor in tensors for piece in tensor.split(2**24)):
        best = piece if best is None else torch.cat([best, piece])
        if len(best) > n:
            best = best.topk(n, sorted=False).values
    assert best is not None  # there is at least one score
    return best.min()
