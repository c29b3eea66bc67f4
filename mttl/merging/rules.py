"""How the ranges of all models become one: a function per kind of recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.arithmetic import add_task_vectors
from mttl.aggregation.dare import drop_and_rescale, mask_generator
from mttl.aggregation.elastic import elastic_contrast, elastic_removal, fisher_average
from mttl.aggregation.magnitude import Trimmer, kept_count
from mttl.aggregation.ties import merge_agreeing
from mttl.merging.changes import Change, Ranges
from mttl.merging.recipe import CaPE, Dare, Elastic, ElasticCaPE, FisherAverage, Recipe, Ties
from mttl.merging.weights_folder import Weights


@dataclass(frozen=True)
class Parts:
    """What is merged."""

    base: Weights
    changes: tuple[Change, ...]
    signs: tuple[float, ...]
    weights: tuple[float, ...]
    base_fisher: Weights | None = None
    fishers: tuple[Weights, ...] = ()
    contrast_fisher: Weights | None = None

    def vectors(self, tensor: str, start: int, base: Float[Tensor, "N"]) -> list[Tensor]:
        """Return the range of every task vector, turned around for anti-experts."""
        return [
            change.read(tensor, start, base).mul_(sign)
            for change, sign in zip(self.changes, self.signs, strict=True)
        ]


# Takes the name of a tensor, the first entry of a range, and the base's values in it.
Rule = Callable[[str, int, Float[Tensor, "N"]], Float[Tensor, "N"]]


def make_rule(recipe: Recipe, parts: Parts) -> Rule:
    """Return the function that merges ranges; it is to be called for all of them in order."""
    method = recipe.method
    if method.kind in _RULES:
        return _RULES[method.kind](method, parts)
    n_models = len(parts.weights)
    weights = (method.weight,) * n_models if isinstance(method, CaPE) else parts.weights
    return lambda tensor, start, base: add_task_vectors(
        base, parts.vectors(tensor, start, base), weights
    )


def _elastic(method: Elastic, parts: Parts) -> Rule:
    def rule(tensor: str, start: int, base: Tensor) -> Tensor:
        # A model that leaves a tensor alone has no vector there, and so no part in Z either.
        having = [i for i, change in enumerate(parts.changes) if change.touches(tensor)]
        fishers = [parts.base_fisher, *(parts.fishers[i] for i in having)]
        if not having or not _measured(tensor, fishers):
            return base
        vectors = parts.vectors(tensor, start, base)
        return elastic_removal(
            base,
            _range(fishers[0], tensor, start, base),
            [vectors[i] for i in having],
            [_range(fisher, tensor, start, base) for fisher in fishers[1:]],
            [parts.weights[i] for i in having],
            base_weight=method.base_weight,
            floor=method.floor,
            ceiling=method.ceiling,
        )

    return rule


def _elastic_cape(method: ElasticCaPE, parts: Parts) -> Rule:
    def rule(tensor: str, start: int, base: Tensor) -> Tensor:
        fishers = [parts.base_fisher, parts.contrast_fisher]
        if not _measured(tensor, fishers):
            return base
        # Turned around already: their sum is expert − anti-expert.
        first, second = parts.vectors(tensor, start, base)
        return elastic_contrast(
            base,
            _range(fishers[0], tensor, start, base),
            first,
            -second,
            _range(fishers[1], tensor, start, base),
            method.weight,
            floor=method.floor,
            ceiling=method.ceiling,
        )

    return rule


def _fisher_average(method: FisherAverage, parts: Parts) -> Rule:
    def rule(tensor: str, start: int, base: Tensor) -> Tensor:
        if not _measured(tensor, parts.fishers):
            return base
        return fisher_average(
            base,
            parts.vectors(tensor, start, base),
            [_range(fisher, tensor, start, base) for fisher in parts.fishers],
            parts.weights,
            floor=method.floor,
        )

    return rule


def _ties(method: Ties, parts: Parts) -> Rule:
    names = tuple(name for name in parts.base if parts.base.entry(name).dtype.is_floating_point)

    def trimmers(tensors: tuple[str, ...]) -> list[Trimmer]:
        kept = kept_count(sum(parts.base.entry(name).size for name in tensors), method.density)
        # A sign has no part in a magnitude.
        return [Trimmer.of(Ranges(parts.base, change, tensors), kept) for change in parts.changes]

    current = trimmers(names) if method.scope == "model" else []

    def rule(tensor: str, start: int, base: Tensor) -> Tensor:
        nonlocal current
        if method.scope == "tensor" and start == 0:
            current = trimmers((tensor,))
        vectors = [
            trimmer(vector)
            for trimmer, vector in zip(current, parts.vectors(tensor, start, base), strict=True)
        ]
        return merge_agreeing(
            base, vectors, parts.weights, election=method.election, scale=method.scale
        )

    return rule


def _dare(method: Dare, parts: Parts) -> Rule:
    generators: list[torch.Generator] = []

    def rule(tensor: str, start: int, base: Tensor) -> Tensor:
        nonlocal generators
        if start == 0:
            generators = [
                mask_generator(method.seed, place, tensor) for place in range(len(parts.changes))
            ]
        vectors = [
            drop_and_rescale(vector, method.density, generator)
            for vector, generator in zip(
                parts.vectors(tensor, start, base), generators, strict=True
            )
        ]
        if method.then == "ties":
            return merge_agreeing(base, vectors, parts.weights, election=method.election)
        return add_task_vectors(base, vectors, parts.weights)

    return rule


def _measured(tensor: str, fishers: Sequence[Weights | None]) -> bool:
    """Return whether all Fisher information is there; if not, no model changed the tensor."""
    return all(fisher is not None and tensor in fisher for fisher in fishers)


def _range(fisher: Weights | None, tensor: str, start: int, base: Tensor) -> Tensor:
    assert fisher is not None  # a recipe without it does not validate
    return fisher.read(tensor, start, start + len(base)).to(base.dtype)


_RULES: dict[str, Callable[[Any, Parts], Rule]] = {
    "elastic": _elastic,
    "elastic_cape": _elastic_cape,
    "fisher_average": _fisher_average,
    "ties": _ties,
    "dare": _dare,
}
