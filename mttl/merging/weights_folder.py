"""The weights of a model on disk: one safetensors file, or several shards and their index."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.reading import read_json, require_file
from mttl.merging.loaded_names import LoadedNames

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
AS_STORED = LoadedNames()
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """Tensors by name. Files are mapped: what is not looked at is not read."""

    path: Path
    loaded: LoadedNames = AS_STORED

    @cached_property
    def files(self) -> dict[Path, Any]:
        """The opened shards by path, in the order of their names.

        Raises:
            CheckpointError: If there are none, one is missing or damaged, or a tensor has a type
                that cannot be merged.
        """
        return {path: _open(path) for path in self._paths()}

    def opened(self) -> "Weights":
        """Return these weights after a look at all files.

        Raises:
            CheckpointError: As for `files` and `names`.
        """
        len(self)
        return self

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of tensors by those in the files; equal copies of a tied tensor have one.

        Raises:
            CheckpointError: If a tensor is in two shards.
        """
        stored: dict[str, Path] = {}
        for path, file in self.files.items():
            for name in file.offset_keys():
                if name in stored:
                    raise CheckpointError(
                        f"'{name}' stands in '{stored[name]}' and in '{path}': keep one"
                    )
                stored[name] = path
        found, tied = self.loaded.rename(stored), self.loaded.tied()
        copies: dict[str, list[str]] = {}
        for name, new in found.items():
            copies.setdefault(tied.get(new, new), []).append(name)
        for new, (first, *others) in copies.items():
            if others:
                value = self.files[stored[first]].get_tensor(first)
                tensors = (self.files[stored[other]].get_tensor(other) for other in others)
                if all(one.dtype == value.dtype and torch.equal(one, value) for one in tensors):
                    found |= dict.fromkeys((first, *others), new)
        return found

    @cached_property
    def places(self) -> dict[str, tuple[Any, str]]:
        """The opened shard of every tensor, and its name there; in the order of the bytes."""
        found: dict[str, tuple[Any, str]] = {}
        for file in self.files.values():
            for name in file.offset_keys():
                if name in self.names:
                    found.setdefault(self.names[name], (file, name))
        return found

    def wide(self, name: str) -> Tensor:
        """Read a tensor in single precision at least, to compute with."""
        value = self[name]
        return value.to(torch.promote_types(value.dtype, torch.float32))

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.places[name]
        return file.get_tensor(stored)

    def __contains__(self, name: object) -> bool:
        return name in self.places  # a mapping would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def _paths(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        if not self.path.is_dir():
            raise CheckpointError(f"'{self.path}' does not exist")
        if (self.path / SINGLE).is_file():
            return [self.path / SINGLE]
        if not (self.path / INDEX).is_file():
            advice = ": give the folder of a model that transformers saved"
            if pickled := sorted(self.path.glob("*.bin")):
                advice = (
                    f", but {pickled[0].name}: load the model with transformers and save it with "
                    "save_pretrained, which writes safetensors"
                )
            raise CheckpointError(f"'{self.path}' holds neither {SINGLE} nor {INDEX}{advice}")
        shards = read_json(self.path / INDEX, CheckpointError, dict).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(
                f"'{self.path / INDEX}' is damaged (no weight_map). Copy it again"
            )
        names = sorted({str(name) for name in shards.values()})
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise CheckpointError(f"'{self.path}' lacks shards: {', '.join(missing)}")
        return [self.path / name for name in names]


def _open(path: Path) -> Any:
    require_file(path, CheckpointError)
    try:
        file = safe_open(path, framework="pt")
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{path}' is not valid safetensors: {error}") from error
    for name, kind in kinds.items():
        if kind not in DTYPES:
            raise CheckpointError(
                f"'{path}': '{name}' has the type {kind}; only {', '.join(DTYPES)} can be read. "
                "Load the model in one of these and save it"
            )
    return file
