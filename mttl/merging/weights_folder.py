"""The weights of a model on disk, by their names in the loaded model.

The files are one safetensors file, or several shards with an index.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from mttl.io.errors import CheckpointError, raised_as
from mttl.io.reading import read_json, require_file
from mttl.models.backbone import read_architecture

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


class LoadedNames:
    """Maps names in files, such as ``h.0.attn.c_attn.weight``, to names in the loaded model.

    Without a language model in the folder, names do not change.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._model = None if folder is None else empty_model(folder)
        bare = self._model or torch.nn.Module()
        self._known, self.buffers = bare.state_dict(), dict(bare.named_buffers())
        self._parts: set[str] = set()

    def rename(self, stored: Collection[str]) -> dict[str, str]:
        """Return names in the model by names in files, without those that transformers ignores."""
        if self._model is None:
            return {name: name for name in stored}
        changes = get_model_conversion_mapping(self._model)
        renamings = [one for one in changes if isinstance(one, WeightRenaming)]
        converters = [one for one in changes if isinstance(one, WeightConverter)]
        prefix, found = self._model.base_model_prefix, {}
        for name in stored:
            new, merged = rename_source_key(name, renamings, converters, prefix, self._known)
            if new not in self._known or merged is not None:
                new, _ = rename_source_key(name, [], [], prefix, self._known)
            if merged is not None:  # a part of a tensor of the loaded model, which stays separate
                self._parts.add(new)
            found[name] = new
        extra = {new for new in found.values() if self.is_extra(new)}
        report: Any = SimpleNamespace(missing_keys=set(), unexpected_keys=extra)
        self._model._adjust_missing_and_unexpected_keys(report)
        ignored = extra - report.unexpected_keys
        return {name: new for name, new in found.items() if new not in ignored}

    def tied(self) -> dict[str, str]:
        """Return the first name of every tensor by all its names in the model."""
        first, bare = dict[int, str](), self._model or torch.nn.Module()
        named = (bare.named_parameters, bare.named_buffers)
        tensors = chain.from_iterable(one(remove_duplicate=False) for one in named)
        return {name: first.setdefault(id(value), name) for name, value in tensors}

    def is_extra(self, name: str) -> bool:
        """Return whether the model does not use a tensor of its files."""
        return self._model is not None and name not in self._known and name not in self._parts


def empty_model(folder: Path) -> Any:
    """Return the language model of a folder on the meta device, or None if there is none."""
    if not folder.is_dir():
        return None
    try:
        kind, config = read_architecture(str(folder))
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)
    except Exception:  # transformers raises various errors for unknown models
        return None


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """Tensors by name, read on demand from memory-mapped files.

    Raises:
        CheckpointError: If files are missing or damaged, or a tensor cannot be merged.
    """

    path: Path
    loaded: LoadedNames = field(default_factory=LoadedNames)

    def __post_init__(self) -> None:
        len(self)  # opens all files

    @cached_property
    def files(self) -> dict[Path, Any]:
        """The opened shards by path, in the order of their names."""
        return {path: _open(path) for path in self._paths()}

    @cached_property
    def names(self) -> dict[str, str]:
        """The names in the model by names in files; equal copies of a tied tensor have one name."""
        stored = {name: file for file in self.files.values() for name in file.offset_keys()}
        found, tied = self.loaded.rename(stored), self.loaded.tied()
        copies: dict[str, list[str]] = {}
        for name, new in found.items():
            copies.setdefault(tied.get(new, new), []).append(name)
        for new, (first, *others) in copies.items():
            if others:
                value = stored[first].get_tensor(first)
                tensors = (stored[other].get_tensor(other) for other in others)
                if all(one.dtype == value.dtype and torch.equal(one, value) for one in tensors):
                    found |= dict.fromkeys((first, *others), new)
        return found

    @cached_property
    def places(self) -> dict[str, tuple[Any, str]]:
        """The opened shard of every tensor and its name there, in the order of the bytes."""
        found: dict[str, tuple[Any, str]] = {}
        for file in self.files.values():
            for name in file.offset_keys():
                if name in self.names:
                    found.setdefault(self.names[name], (file, name))
        return found

    def wide(self, name: str) -> Tensor:
        """Return a tensor in at least single precision."""
        value = self[name]
        return value.to(torch.promote_types(value.dtype, torch.float32))

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.places[name]
        return file.get_tensor(stored)

    def __contains__(self, name: object) -> bool:
        return name in self.places  # the default of mappings would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def _paths(self) -> list[Path]:
        for file in (self.path, self.path / SINGLE):
            if file.is_file():
                return [file]
        if not self.path.is_dir():
            raise CheckpointError(f"'{self.path}' does not exist")
        if not (self.path / INDEX).is_file():
            advice = "; use the folder of a model in the format of transformers"
            if pickled := sorted(self.path.glob("*.bin")):
                advice = f", but {pickled[0].name}: load the model and save it with safetensors"
            raise CheckpointError(f"'{self.path}' has neither {SINGLE} nor {INDEX}{advice}")
        shards = read_json(self.path / INDEX, CheckpointError, dict)["weight_map"]
        return [self.path / name for name in sorted(set(shards.values()))]


def _open(path: Path) -> Any:
    require_file(path, CheckpointError)
    with raised_as(CheckpointError, f"'{path}' is not valid safetensors", OSError, SafetensorError):
        file = safe_open(path, framework="pt")
    for name in file.keys():  # noqa: SIM118
        if (kind := file.get_slice(name).get_dtype()) not in DTYPES:
            raise CheckpointError(
                f"'{path}': '{name}' has the type {kind}; only {', '.join(DTYPES)} can be read. "
                "Load the model in one of these and save it"
            )
    return file
