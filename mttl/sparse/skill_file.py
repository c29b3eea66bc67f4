r"""Sparse skills as changes of few entries of a network's tensors, and their files.

With base weights θ0 and trained weights θ, the skill is :math:`\phi = \theta - \theta_0` at its
support. Its safetensors file has for each tensor

| key | content |
|---|---|
| ``gaps/<name>`` | differences of successive indices in the flattened tensor, the first from -1 |
| ``values/<name>`` | the changes, in the tensor's dtype |
| ``head/<name>`` | a tensor of the task's head, whole |

and, as metadata, the shape of each tensor and a digest of θ0 at the support, which prevents use on
other weights. Gaps have the smallest possible integer type, usually one or two bytes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from mttl.config.backbone_schema import Heads
from mttl.io.errors import CheckpointError
from mttl.io.record import Record, as_row
from mttl.io.safetensors_file import read_tensors, write_tensors
from mttl.tasks.head_form import HeadForm

# Function of a tensor's name, indices and current values that returns the original weights.
Originals = Callable[[str, Tensor, Tensor], Tensor]
METADATA = "mttl_sparse_skill"
GAP_DTYPES = (torch.uint8, torch.uint16, torch.int32, torch.int64)


class _TensorFacts(Record):
    """The shape of a tensor, and the digest of its original weights."""

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
    indices: Int[Tensor, "n"]  # sorted indices into the flattened tensor, int64
    values: Float[Tensor, "n"]  # changes at the indices
    base: str  # `digest` of the original weights at the indices


class SkillHead(Record):
    """The head of a skill, under the key `head` of its metadata."""

    form: HeadForm
    settings: Heads


@dataclass(frozen=True, eq=False)
class SparseSkill:
    """Changes of a network's tensors by name, and metadata about their training.

    ``head`` has the state of the task's head, if there is one.
    """

    changes: dict[str, SparseChange]
    about: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def between(
        cls,
        start: Mapping[str, Tensor],
        end: Mapping[str, Tensor],
        support: Mapping[str, Int[Tensor, "n"]],
        about: Mapping[str, Any] | None = None,
        originals: Originals | None = None,
    ) -> "SparseSkill":
        """Return the difference of two sets of tensors at the indices of a support.

        With the `SparseComposition.originals` of skills that are applied at the start, the skill
        belongs to the network without them.
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
        """The indices by name of the tensor."""
        return {name: change.indices for name, change in self.changes.items()}

    def kept(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of weights that a masked skill keeps; ValueError for other weights."""
        found = {}
        for name, change in self.changes.items():
            if name in weights:
                values = weights[name].detach().reshape(-1)[change.indices.to(weights[name].device)]
                if self.about.get("on") or digest(values) != change.base:
                    raise ValueError(
                        f"the skill was trained with --form masked on other weights of '{name}'; "
                        "train it on this backbone, without --on"
                    )
                found[name] = change.indices[values.cpu() + change.values != 0]
        return found or self.support

    @property
    def masks(self) -> bool:
        """Whether the skill sets weights to 0, which only one skill of a network may do."""
        return self.about.get("form") == "masked"

    @property
    def n_entries(self) -> int:
        """The number of changed entries."""
        return sum(len(change.indices) for change in self.changes.values())

    def save(self, path: str | Path) -> None:
        """Write the file atomically."""
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
        for name, value in self.head.items():
            tensors[f"head/{name}"] = value.detach().cpu().contiguous()
        content = _Facts(tensors=facts, about=self.about)
        content = content.model_copy(update={"sha256": _checksum(tensors, as_row(content))})
        metadata = {METADATA: json.dumps(as_row(content))}
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "SparseSkill":
        """Return the skill of a file."""
        tensors = read_tensors(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if METADATA not in metadata:
            raise CheckpointError(f"'{path}' has no sparse skill; use a file of mttl sparse")
        facts = _Facts.parse(metadata[METADATA], f"'{path}', its metadata")
        if facts.sha256 != _checksum(tensors, as_row(facts)):
            raise CheckpointError(
                f"'{path}' is damaged: its checksum differs from the recorded one. Copy it again"
            )
        changes = {}
        for name, fact in facts.tensors.items():
            indices = tensors[f"gaps/{name}"].to(torch.int64).cumsum(0) - 1
            changes[name] = SparseChange(fact.shape, indices, tensors[f"values/{name}"], fact.base)
        heads = {n.removeprefix("head/"): x for n, x in tensors.items() if n.startswith("head/")}
        return cls(changes, facts.about, heads)


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    noted = {name: value for name, value in facts.items() if name != "sha256"}
    content = hashlib.sha256(json.dumps(noted, sort_keys=True).encode())
    for name in sorted(tensors):
        content.update(f"{name} {digest(tensors[name])}".encode())
    return content.hexdigest()


def digest(values: Tensor) -> str:
    """Return a hash of the bits of values and of their dtype."""
    exact = values.detach().cpu().contiguous()
    content = hashlib.sha256(str(exact.dtype).encode())
    content.update(exact.view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:32]
