"""Task vectors of tuned models and of tasks of runs, and the rules that merge them.

For a run, the backbone is built without memory for its weights, and changes are computed layer by
layer on demand.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

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
from mttl.assembly.model import assemble
from mttl.assembly.saved_settings import read_found_settings
from mttl.checkpoints.model_tensors import backbone_parameters, router_tensors, skill_tensors
from mttl.checkpoints.saved_inventory import copy_saved, read_inventory
from mttl.config.capabilities import require_features
from mttl.io.errors import CheckpointError, ConfigError, nearest, raised_as, some
from mttl.merging.fold import is_transposed, require_weights, task_mixing
from mttl.merging.recipe import CaPE, Dare, Elastic, ElasticCaPE, FisherAverage, Recipe, Ties
from mttl.merging.weights_folder import Weights, empty_model
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.weights.sparse import restore_supports


@dataclass(frozen=True)
class DenseChange:
    """The difference of a tuned model from its base."""

    weights: Weights

    def touches(self, tensor: str) -> bool:
        """Return whether the tensor may have changed: whether the model has it."""
        return tensor in self.weights

    def read(self, tensor: str, base: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the difference, in the precision of ``base``."""
        if not self.touches(tensor):
            return torch.zeros_like(base)
        return self.weights[tensor].to(base.dtype) - base


class MixtureChange:
    """The change of the base by a run's skills for one task.

    Raises:
        CheckpointError: If the run or the base cannot be read, the run lacks the task, was trained
            on another backbone, or has skills that are not plain weights.
    """

    def __init__(self, run: str | Path, task: str, base: Weights) -> None:
        folder = base.path
        saved = read_inventory(run)
        self.settings = settings = read_found_settings(saved)
        if task not in saved.tasks:
            raise CheckpointError(f"'{run}' has no task '{task}'.{nearest(task, saved.tasks)}")
        if settings.backbone.quantize:
            raise CheckpointError(
                f"'{run}' was trained on a quantised backbone ({settings.backbone.quantize}); "
                "merge its task into a model first (mttl merge-task), and use that model"
            )
        require_features(settings, {"merges": f"merging '{run}'"})
        backbone = empty_model(folder)
        if backbone is None:
            raise CheckpointError(
                f"'{folder}' is not a language model, which the skills of a run need"
            )
        with raised_as(CheckpointError, f"'{run}' does not fit '{folder}'", ConfigError):
            model, *_ = assemble(backbone, settings, saved.tasks, trained=True)
        self._layers = model.skilled_layers()
        parameters = backbone_parameters(backbone)
        if missing := [name for name in parameters if name not in base]:
            raise CheckpointError(f"'{folder}' lacks weights of its model: {some(missing)}")
        saved.require_backbone(parameters, f"'{folder}'", base)
        _give_memory(self._layers.values())
        restore_supports(self._layers, saved.skills)
        copy_saved(saved, {"skills": skill_tensors(model), "router": router_tensors(model)})
        self._mixing = task_mixing(model.router, saved.tasks.index(task))
        with raised_as(CheckpointError, f"'{run}'", ValueError):
            for path, layer in self._layers.items():
                require_weights(path, layer)
        # The backbone of the skills: that of the run if it was trained.
        self._trained = Weights(saved.folder / "backbone.safetensors") if saved.backbone else None
        self._below = base if self._trained is None else self._trained
        parts = ((f"{path}.{part}", path) for path in self._layers for part in ("weight", "bias"))
        self._owners = {name: path for name, path in parts if name in parameters}

    def touches(self, tensor: str) -> bool:
        """Return whether the tensor may have changed."""
        return tensor in self._owners or self._trained is not None

    def read(self, tensor: str, base: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the change of a tensor, in the precision of ``base``."""
        change = torch.zeros_like(base)
        if tensor in self._owners:
            change += self._change(tensor).to(base.dtype)
        if self._trained is not None and tensor in self._trained:
            change += self._trained[tensor].to(base.dtype) - base
        return change

    @torch.no_grad()
    def _change(self, tensor: str) -> Tensor:
        """Return the change of a layer's weight or bias in the layout of the backbone."""
        path = self._owners[tensor]
        layer, part = self._layers[path], tensor.rpartition(".")[2]
        weights = self._mixing[layer.group]
        transposed = is_transposed(layer.base)
        # Multiplicative kinds have no change that is independent of the weight.
        with suppress(NotImplementedError):
            if part == "weight":
                change = layer.inventory.delta(weights[None])[0]
                return change.t().contiguous() if transposed else change
        weight = self._below.wide(f"{path}.weight")
        bias = self._below.wide(f"{path}.bias") if f"{path}.bias" in self._owners else None
        folded = layer.inventory.fold(weight.t() if transposed else weight, bias, weights)
        if part == "bias":
            assert folded[1] is not None
            assert bias is not None
            return folded[1] - bias
        return (folded[0].t() if transposed else folded[0]) - weight


Change = DenseChange | MixtureChange


def _give_memory(layers: Iterable[SkilledLayer]) -> None:
    """Replace the skills' tensors by empty ones on the CPU; shared ones stay shared."""
    made: dict[Tensor, Any] = {}
    for module in (part for layer in layers for part in layer.inventory.modules()):
        for name, value in module._parameters.items():
            if value is not None:
                if value not in made:
                    made[value] = nn.Parameter(torch.empty_like(value, device="cpu"))
                module._parameters[name] = made[value]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")


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
    "slerp": lambda how, parts, name, x: slerp(x, x + parts.vectors(name, x)[0], how.weight),
    "model_stock": lambda how, parts, name, x: stock_average(x, parts.vectors(name, x)),
}
