"""Task vectors, one tensor at a time: of a tuned model, or of one task of a trained run.

For a run, the backbone is built without memory for its weights, and changes are computed layer by
layer on demand.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.assembly.model import assemble
from mttl.assembly.saved_settings import read_found_settings
from mttl.checkpoints.model_tensors import backbone_parameters, router_tensors, skill_tensors
from mttl.checkpoints.saved_inventory import copy_saved, read_inventory
from mttl.config.capabilities import require_features
from mttl.io.errors import CheckpointError, ConfigError, nearest, raised_as, some
from mttl.merging.fold import is_transposed, require_plain, require_weights, task_mixing
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
        require_plain(model)
        parameters = backbone_parameters(backbone)
        if missing := [name for name in parameters if name not in base]:
            raise CheckpointError(f"'{folder}' lacks weights of its model: {some(missing)}")
        saved.require_backbone(parameters, f"'{folder}'", base)
        _give_memory(self._layers.values())
        restore_supports(self._layers, saved.skills)
        copy_saved(saved, {"skills": skill_tensors(model), "router": router_tensors(model)})
        self._mixing = task_mixing(model.router, saved.tasks.index(task))
        with raised_as(CheckpointError, f"'{run}'", ValueError, NotImplementedError):
            _try_folds(self._layers, self._mixing)
        # The backbone of the skills: that of the run if it was trained.
        self._trained = Weights(saved.folder / "backbone.safetensors") if saved.backbone else None
        self._below = base if self._trained is None else self._trained
        self._owners = {
            f"{path}.{part}": path
            for path in self._layers
            for part in ("weight", "bias")
            if f"{path}.{part}" in parameters
        }

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


@torch.no_grad()
def _try_folds(layers: Mapping[str, SkilledLayer], mixing: Float[Tensor, "G H K"]) -> None:
    """Fold one layer of each kind, with and without bias, to check that this is possible."""
    tried = {}
    for path, skilled in layers.items():
        layer = require_weights(path, skilled)
        tried.setdefault((type(layer.inventory), layer.bias is None), layer)
    for layer in tried.values():
        weight = torch.zeros(layer.weight.shape)
        bias = None if layer.bias is None else torch.zeros(layer.bias.shape)
        weight = weight.t() if is_transposed(layer.base) else weight
        layer.inventory.fold(weight, bias, mixing[layer.group])


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
