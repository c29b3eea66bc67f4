"""The card of a library member: task, source, base model, layers, training and scores."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mttl.io.errors import CheckpointError
from mttl.io.reading import printable
from mttl.io.record import Record
from mttl.tasks.record_template import RecordTemplate

LIBRARY = "library.json"  # index of the members
CARD = "card.json"
_FORBIDDEN = "*/:?[\\]"


def check_library(folder: str | Path) -> Path:
    """Return the index file of a library; CheckpointError if the folder has none."""
    path = Path(folder) / LIBRARY
    if not path.exists():
        raise CheckpointError(
            f"'{folder}' is not a library: it has no {LIBRARY}. Create one by mttl library add"
        )
    return path


def member_name(name: str) -> str:
    """Return a valid name of a member; ValueError for others."""
    if printable(name).startswith(".") or set(_FORBIDDEN) & set(name):
        raise ValueError(f"must not start with a dot or contain any of {' '.join(_FORBIDDEN)}")
    return name


class BaseModel(Record):
    """The base model of all members of a library."""

    name: str  # a local folder, or a name on the hub
    fingerprint: str  # of its parameters, as in runs
    task_type: str  # of PEFT: "SEQ_2_SEQ_LM" or "CAUSAL_LM"
    transposed: bool  # whether weights have the shape (I, O), as GPT-2's
    layers: dict[str, tuple[int, int]] = Field(repr=False)  # input and output features by path


class MemberCard(Record):
    """The metadata of a member."""

    format_version: Literal[1] = 1
    name: str  # also of the folder
    task: str
    source: str  # folder from which it was added
    base: dict[str, Any] = Field(default_factory=dict)  # name and fingerprint of its base model
    targets: dict[str, int] = Field(default_factory=dict)  # the rank of its change, by layer
    weights: dict[str, Any] = Field(default_factory=dict)  # SHA-256 and number of parameters
    data: str | None = None
    licence: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)  # settings
    scores: list[dict[str, str]] = Field(default_factory=list)  # split, metric, score and n
    options: list[str] = Field(default_factory=list)  # of the task in its run, like the template
    template: RecordTemplate | None = None
