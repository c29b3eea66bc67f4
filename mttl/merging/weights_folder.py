"""The weights of a model on disk: one safetensors file, or several shards and their index."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxtyping import Shaped
from torch import Tensor

from mttl.errors import CheckpointError
from mttl.merging.tensor_file import Entry, TensorFile
from mttl.reading import check_name, read_json, reason

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """Tensors by name, read when they are asked for.

    Args:
        path: A folder as transformers saves it, or a safetensors file.
    """

    path: Path

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
    def places(self) -> dict[str, TensorFile]:
        """The shard of every tensor.

        Raises:
            CheckpointError: If one stands in two shards.
        """
        found: dict[str, TensorFile] = {}
        for file in self.files:
            for name in file.entries:
                if name in found:
                    raise CheckpointError(
                        f"'{name}' stands in '{found[name].path}' and in '{file.path}': keep one"
                    )
                found[name] = file
        return found

    def entry(self, name: str) -> Entry:
        """Return type and shape of a tensor."""
        return self.places[name].entries[name]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Shaped[Tensor, "N"]:
        """Read a range of a tensor's entries; see `TensorFile.read`."""
        return self.places[name].read(name, start, stop)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name).view(self.entry(name).shape)

    def __contains__(self, name: object) -> bool:
        return name in self.places  # a mapping would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
