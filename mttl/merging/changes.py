"""Task vectors that are read by ranges, wherever they come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.arithmetic import task_vector
from mttl.merging.weights_folder import Weights


class Change(Protocol):
    """A task vector τ over the tensors of a base."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def touches(self, tensor: str) -> bool:
        """Return whether the tensor may have changed at all."""
        ...

    def read(self, tensor: str, start: int, base: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Return τ for the range that begins at ``start`` and whose base values are given."""
        ...


@dataclass(frozen=True)
class DenseChange:
    """The difference of a tuned model and its base."""

    name: str
    weights: Weights

    def touches(self, tensor: str) -> bool:
        """Return whether the tensor may have changed at all: any that the model has may."""
        return tensor in self.weights

    def read(self, tensor: str, start: int, base: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Return the range's difference, in the precision of ``base``."""
        if not self.touches(tensor):
            return torch.zeros_like(base)
        return task_vector(base, self.weights.read(tensor, start, start + len(base)).to(base.dtype))


@dataclass(frozen=True)
class Ranges:
    """The ranges of a task vector over several tensors, one after another, as often as asked."""

    base: Weights
    change: Change
    tensors: tuple[str, ...]

    def __iter__(self) -> Iterator[Tensor]:
        for tensor in self.tensors:
            for start, stop in self.base.entry(tensor).ranges():
                yield self.change.read(tensor, start, read_wide(self.base, tensor, start, stop))


def read_wide(weights: Weights, tensor: str, start: int, stop: int) -> Float[Tensor, "N"]:
    """Read a range in single precision at least, to compute with."""
    values = weights.read(tensor, start, stop)
    return values.to(torch.promote_types(values.dtype, torch.float32))
