r"""A sparse skill apart from any model: few changes of a network's tensors, and their small file.

With θ0 the weights it was made for and θ those after training, the skill holds
:math:`\phi = \theta - \theta_0` at its support. A file is a safetensors file with, for each tensor,

| key | content |
|---|---|
| ``gaps/<name>`` | distances between places in the flattened tensor, the first from -1 |
| ``values/<name>`` | the changes, in the tensor's dtype |

and, as its metadata, the shape of each tensor and a digest of θ0 at the support, so that a skill is
never put on other weights than it was made for. Gaps are stored in the smallest whole numbers that
hold them: one or two bytes each, as a rule.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.record import Record, as_row
from mttl.io.safetensors_file import read_tensors, write_tensors

# Gives weights as they are without skills: name of the tensor, places, and values there.
Originals = Callable[[str, Tensor, Tensor], Tensor]
METADATA = "mttl_sparse_skill"
GAP_DTYPES = (torch.uint8, torch.uint16, torch.int32, torch.int64)


class _TensorFacts(Record):
    """Of one tensor: its shape, and the digest of the weights that were there."""

    shape: tuple[int, ...]
    base: str


class _Facts(Record):
    """The metadata of a file."""

    format_version: Literal[1] = 1
    tensors: dict[str, _TensorFacts]
    about: dict[str, Any]
    sha256: str | None = None


@dataclass(frozen=True, eq=False)
class SparseChange:
    """The change of one tensor."""

    shape: tuple[int, ...]  # of the tensor
    indices: Int[Tensor, "n"]  # sorted places in the flattened tensor, int64
    values: Float[Tensor, "n"]  # added there
    base: str  # `digest` of the weights that were there


@dataclass(frozen=True, eq=False)
class SparseSkill:
    """Changes of some tensors of a network by name, and how they were made."""

    changes: dict[str, SparseChange]
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def between(
        cls,
        start: Mapping[str, Tensor],
        end: Mapping[str, Tensor],
        support: Mapping[str, Int[Tensor, "n"]],
        about: Mapping[str, Any] | None = None,
        originals: Originals | None = None,
    ) -> "SparseSkill":
        """Return the difference of two sets of tensors at places in the flattened tensors.

        With the `SparseComposition.originals` of skills that are on the network at the start, the
        skill is one of the network below them.
        """
        changes = {}
        for name, indices in support.items():
            before, after = (one[name].detach().reshape(-1)[indices] for one in (start, end))
            known = originals(name, indices, before) if originals else before
            shape = tuple(start[name].shape)
            changes[name] = SparseChange(shape, indices, after - before, digest(known))
        return cls(changes, dict(about or {}))

    @property
    def support(self) -> dict[str, Tensor]:
        """The places by name."""
        return {name: change.indices for name, change in self.changes.items()}

    @property
    def masks(self) -> bool:
        """Whether it sets weights to 0, which no two skills of a network may."""
        return self.about.get("form") == "masked"

    @property
    def n_entries(self) -> int:
        """How many entries change."""
        return sum(len(change.indices) for change in self.changes.values())

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        facts: dict[str, _TensorFacts] = {}
        for name, change in self.changes.items():
            before = change.indices.new_full((1,), -1)
            gaps = torch.diff(change.indices, prepend=before).cpu()
            largest = int(gaps.max()) if len(gaps) else 0
            dtype = next(kind for kind in GAP_DTYPES if largest <= torch.iinfo(kind).max)
            tensors[f"gaps/{name}"] = gaps.to(dtype)
            tensors[f"values/{name}"] = change.values.detach().cpu().contiguous()
            facts[name] = _TensorFacts(shape=change.shape, base=change.base)
        content = _Facts(tensors=facts, about=self.about)
        content = content.model_copy(update={"sha256": _checksum(tensors, as_row(content))})
        metadata = {METADATA: json.dumps(as_row(content))}
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "SparseSkill":
        """Read a file.

        Raises:
            CheckpointError: If it is missing, damaged or of another format, or its places are
                repeated, outside the tensor, or not as many as its values.
        """
        tensors = read_tensors(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if METADATA not in metadata:
            raise CheckpointError(f"'{path}' holds no sparse skill; mttl sparse writes such files")
        facts = _Facts.parse(metadata[METADATA], f"'{path}', its metadata")
        if facts.sha256 != _checksum(tensors, as_row(facts)):
            raise CheckpointError(
                f"'{path}' is damaged: its checksum is not the one noted. Copy it again"
            )
        changes = {}
        for name, fact in facts.tensors.items():
            gaps, values = (tensors.get(f"{part}/{name}") for part in ("gaps", "values"))
            if (
                gaps is None
                or values is None
                or (gaps.ndim, gaps.shape) != (1, values.shape)
                or (gaps := gaps.to(torch.int64)).le(0).any()
                or gaps.sum() > math.prod(fact.shape)
            ):
                raise CheckpointError(
                    f"'{path}': changes of '{name}' must have ascending places in {fact.shape}, "
                    "and one value each"
                )
            changes[name] = SparseChange(fact.shape, gaps.cumsum(0) - 1, values, fact.base)
        return cls(changes, facts.about)


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    noted = {name: value for name, value in facts.items() if name != "sha256"}
    content = hashlib.sha256(json.dumps(noted, sort_keys=True).encode())
    for name in sorted(tensors):
        content.update(f"{name} {digest(tensors[name])}".encode())
    return content.hexdigest()


def digest(values: Tensor) -> str:
    """Return a hash of values, bit for bit, and of their dtype."""
    exact = values.detach().cpu().contiguous()
    content = hashlib.sha256(str(exact.dtype).encode())
    content.update(exact.view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:32]


def put_entries(tensor: Tensor, indices: Int[Tensor, "n"], values: Tensor) -> None:
    """Write values into a tensor in place."""
    data = tensor.detach()
    if data.is_contiguous():
        data.view(-1).index_copy_(0, indices, values.detach())
    else:
        data[torch.unravel_index(indices, data.shape)] = values.detach()
