"""Merge rules: a function per method, from the tensors of all models to one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.fisher import elastic_removal, fisher_average
from mttl.aggregation.interpolation import slerp, stock_average
from mttl.aggregation.task_vectors import (
    Trimmer,
    add_task_vectors,
    drop_and_rescale,
    kept_count,
    mask_generator,
    merge_agreeing,
    trim,
)
from mttl.merging.mixture import Change
from mttl.merging.recipe import (
    CaPE,
    Dare,
    Elastic,
    ElasticCaPE,
    FisherAverage,
    Recipe,
    Slerp,
    Ties,
)
from mttl.merging.weights_folder import Weights


@dataclass(frozen=True)
class Parts:
    """The opened files of a recipe."""

    recipe: Recipe
    base: Weights
    changes: Sequence[Change]
    base_fisher: Weights | None
    fishers: Sequence[Weights | None]
    contrast_fisher: Weights | None

    def merged(self, tensor: str, base: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the merged values of a tensor; call it for all tensors in order."""
        method = self.recipe.method
        if not any(self.weights(tensor)):
            return base
        return _RULES[method.kind](method, self, tensor, base)

    def weights(self, tensor: str) -> list[float]:
        """Return the weight of every model for a tensor."""
        return [model.weight_of(tensor) for model in self.recipe.models]

    def vectors(self, tensor: str, base: Float[Tensor, "*shape"]) -> list[Tensor]:
        """Return the tensor's part of every task vector, negated for anti-experts."""
        return [
            change.read(tensor, base).mul_(1.0 if model.role == "expert" else -1.0)
            for change, model in zip(self.changes, self.recipe.models, strict=True)
        ]

    @cached_property
    def trimmers(self) -> list[Trimmer]:
        """The trimmer of each task vector over all tensors, for TIES with the scope ``"model"``."""
        names = [name for name in self.base if self.base[name].is_floating_point()]
        density = getattr(self.recipe.method, "density", 1.0)
        kept = kept_count(sum(self.base[name].numel() for name in names), density)

        def read(change: Change) -> Iterator[Tensor]:
            return (change.read(name, self.base.wide(name)) for name in names)

        return [Trimmer.of(partial(read, one), kept) for one in self.changes]


def _add(method: Any, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    both = isinstance(method, CaPE)
    weights = [method.weight] * len(parts.changes) if both else parts.weights(tensor)
    return add_task_vectors(base, parts.vectors(tensor, base), weights)


def _elastic(method: Elastic | ElasticCaPE, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    vectors = parts.vectors(tensor, base)
    if isinstance(method, ElasticCaPE):
        # Vectors of anti-experts are negated: the sum is expert − anti-expert.
        vectors, files = [vectors[0] + vectors[1]], [parts.contrast_fisher]
        weights, base_weight = [method.weight], 1 - method.weight
    else:
        # Models that do not change a tensor contribute neither a vector nor to Z.
        weights = parts.weights(tensor)
        having = [i for i, change in enumerate(parts.changes) if change.touches(tensor)]
        vectors, files = [vectors[i] for i in having], [parts.fishers[i] for i in having]
        weights, base_weight = [weights[i] for i in having], method.base_weight
    fishers = _measures(tensor, base, parts.base_fisher, *files)
    if not vectors or not fishers:
        return base
    settings = {"base_weight": base_weight, "floor": method.floor, "ceiling": method.ceiling}
    return elastic_removal(base, fishers[0], vectors, fishers[1:], weights, **settings)


def _fisher_average(method: FisherAverage, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    if not (fishers := _measures(tensor, base, *parts.fishers)):
        return base
    vectors = parts.vectors(tensor, base)
    return fisher_average(base, vectors, fishers, parts.weights(tensor), floor=method.floor)


def _ties(method: Ties, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    vectors = parts.vectors(tensor, base)
    if method.scope == "model":
        pairs = zip(parts.trimmers, vectors, strict=True)
        vectors = [trimmer(vector.flatten()).view_as(vector) for trimmer, vector in pairs]
    else:
        vectors = [trim(vector, method.density) for vector in vectors]
    how = {"election": method.election, "scale": method.scale}
    return merge_agreeing(base, vectors, parts.weights(tensor), **how)


def _dare(method: Dare, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    spread = getattr(method, "spread", 0.0)  # of DELLA
    vectors = [
        drop_and_rescale(vector, method.density, mask_generator(method.seed, place, tensor), spread)
        for place, vector in enumerate(parts.vectors(tensor, base))
    ]
    if method.then == "ties":
        return merge_agreeing(base, vectors, parts.weights(tensor), election=method.election)
    return add_task_vectors(base, vectors, parts.weights(tensor))


def _slerp(method: Slerp, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    return slerp(base, base + parts.vectors(tensor, base)[0], method.weight)


def _model_stock(method: Any, parts: Parts, tensor: str, base: Tensor) -> Tensor:
    return stock_average(base, parts.vectors(tensor, base))


def _measures(tensor: str, base: Tensor, *fishers: Weights | None) -> list[Tensor]:
    """Return all Fisher information of a tensor; none if a file lacks it, as for unchanged ones."""
    found = [one[tensor].to(base.dtype) for one in fishers if one is not None and tensor in one]
    return found if len(found) == len(fishers) else []


_RULES: dict[str, Callable[[Any, Parts, str, Tensor], Tensor]] = {
    "arithmetic": _add,
    "cape": _add,
    "elastic": _elastic,
    "elastic_cape": _elastic,
    "fisher_average": _fisher_average,
    "ties": _ties,
    "dare": _dare,
    "della": _dare,
    "slerp": _slerp,
    "model_stock": _model_stock,
}
