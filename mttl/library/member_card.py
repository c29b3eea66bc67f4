"""The card of a member: what a skill is, where it comes from, and the hash of its weights."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mttl.io.errors import CheckpointError
from mttl.io.reading import printable
from mttl.io.record import Record

LIBRARY = "library.json"  # which members count
CARD = "card.json"
_FORBIDDEN = "*/:?[\\]"


def check_library(folder: str | Path) -> Path:
    """Return the file of a library that says which members count; refuse folders without."""
    path = Path(folder) / LIBRARY
    if not path.exists():
        raise CheckpointError(
            f"'{folder}' is not a library: it has no {LIBRARY}. mttl library add makes one"
        )
    return path


def member_name(name: str) -> str:
    """Return a name that a folder of a library can have; others are a `ValueError`."""
    if printable(name).startswith(".") or set(_FORBIDDEN) & set(name):
        raise ValueError(f"must not begin with a point nor hold any of {' '.join(_FORBIDDEN)}")
    return name


class BaseModel(Record):
    """The language model below all members of a library."""

    name: str  # a folder of this machine, or its name on the hub
    fingerprint: str  # of its parameters, as runs note it
    task_type: str  # "SEQ_2_SEQ_LM" or "CAUSAL_LM", as PEFT says it
    transposed: bool  # it keeps weights as (I, O), as GPT-2 does
    layers: dict[str, tuple[int, int]] = Field(repr=False)  # features in and out, by path


class MemberCard(Record):
    """What is known of a member."""

    format_version: Literal[1] = 1
    name: str  # and that of its folder
    task: str
    source: str  # where it was read
    base: dict[str, Any] = Field(default_factory=dict)  # name and fingerprint of its base model
    targets: dict[str, int] = Field(default_factory=dict)  # the rank of its change, by layer
    weights: dict[str, Any] = Field(default_factory=dict)  # SHA-256 and number of parameters
    data: str | None = None
    licence: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)  # settings
    scores: list[dict[str, str]] = Field(default_factory=list)  # split, metric, score and n

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(self.targets.values())
