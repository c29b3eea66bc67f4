"""The weights of a model on disk: one safetensors file, or several shards and their index."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.reading import check_name, read_json, reason
from mttl.merging.loaded_names import LoadedNames
from mttl.merging.tensor_file import Entry, TensorFile

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
AS_STORED = LoadedNames()


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """Tensors by name, read when they are asked for."""

    path: Path
    loaded: LoadedNames = AS_STORED

    @cached_property
    def files(self) -> tuple[TensorFile, ...]:
        """The shards, in the order of their names.

        Raises:
            CheckpointError: If there are none, or the index is damaged or names a missing one.
        """
        if self.path.is_file():
            return (TensorFile(self.path),)
        if not self.path.is_dir():
            raise CheckpointError(f"'{self.path}' does not exist")
        if (self.path / SINGLE).is_file():
            return (TensorFile(self.path / SINGLE),)
        if not (self.path / INDEX).is_file():
            pickled = sorted(self.path.glob("*.bin"))
            raise CheckpointError(
                f"'{self.path}' holds neither {SINGLE} nor {INDEX}"
                + (
                    f", but {pickled[0].name}: load the model with transformers and save it with "
                    "save_pretrained, which writes safetensors"
                    if pickled
                    else ": give the folder of a model that transformers saved"
                )
            )
        try:
            index = read_json(self.path / INDEX, CheckpointError, dict)
            names = sorted(set(index["weight_map"].values()))
            if not names or not all(Path(name).name == name for name in names):
                raise ValueError("a shard must be a file of the folder")
            for name in names:
                check_name(name, "a shard", CheckpointError)
        except (CheckpointError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"'{self.path / INDEX}' is damaged ({reason(error)}): copy it again from where it "
                "came from"
            ) from error
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise CheckpointError(f"'{self.path}' lacks shards: {', '.join(missing)}")
        return tuple(TensorFile(self.path / name) for name in names)

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of tensors by those in the files; equal copies of a tied tensor have one.

        Raises:
            CheckpointError: If a tensor stands in two shards.
        """
        stored: dict[str, TensorFile] = {}
        for file in self.files:
            for name in file.entries:
                if name in stored:
                    raise CheckpointError(
                        f"'{name}' stands in '{stored[name].path}' and in '{file.path}': keep one"
                    )
                stored[name] = file
        found, tied = self.loaded.rename(stored), self.loaded.tied()
        copies: dict[str, list[str]] = {}
        for name, new in found.items():
            copies.setdefault(tied.get(new, new), []).append(name)
        for new, (first, *others) in copies.items():
            if all(_equal(stored[first], first, stored[other], other) for other in others):
                found |= dict.fromkeys((first, *others), new)
        return found

    @cached_property
    def places(self) -> dict[str, tuple[TensorFile, str]]:
        """The shard of every tensor, and its name there."""
        found: dict[str, tuple[TensorFile, str]] = {}
        for file in self.files:
            for name in file.entries:
                if name in self.names:
                    found.setdefault(self.names[name], (file, name))
        return found

    def entry(self, name: str) -> Entry:
        """Return type and shape of a tensor."""
        file, stored = self.places[name]
        return file.entries[stored]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Shaped[Tensor, "N"]:
        """Read a range of a tensor's entries; see `TensorFile.read`."""
        file, stored = self.places[name]
        return file.read(stored, start, stop)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name).view(self.entry(name).shape)

    def __contains__(self, name: object) -> bool:
        return name in self.places  # a mapping would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _equal(file: TensorFile, name: str, other: TensorFile, copy: str) -> bool:
    one, two = file.entries[name], other.entries[copy]
    return (one.dtype, one.shape) == (two.dtype, two.shape) and all(
        torch.equal(file.read(name, *part), other.read(copy, *part)) for part in one.ranges()
    )
