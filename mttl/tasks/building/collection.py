"""Tasks of a published collection, which are read from its downloaded copy."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from mttl.io.record import STRICT
from mttl.tasks.task import Task
from mttl.tasks.template import Record

MOST_HELD_OUT = 100


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CollectedTask(Task):
    """A task of a collection: its files, and a function from a split to the records."""

    files: tuple[Path, ...]
    read: Callable[[str], Iterable[Record]] = field(repr=False)


def text_task(**keys: Any) -> CollectedTask:
    """Return a task whose records have ``input`` and ``output``."""
    keys = {"metric": "Rouge-L", "description": "", "kind": "text-to-text"} | keys
    return CollectedTask(input="{input}", output="{output}", **keys)


def part(items: Sequence[Any], split: str) -> Sequence[Any]:
    """Return one of three parts: at most 100 items are test, then at most 100 dev, others train.

    Of fewer than 200 items half are test, and of others at most half are dev.
    """
    n_test = min(MOST_HELD_OUT, len(items) // 2)
    n_dev = min(MOST_HELD_OUT, (len(items) - n_test) // 2)
    held_out, rest = items[: n_test + n_dev], items[n_test + n_dev :]
    return {"test": held_out[:n_test], "dev": held_out[n_test:], "train": rest}[split]
