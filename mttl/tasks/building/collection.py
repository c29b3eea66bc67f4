"""What the builder needs of a published collection of tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mttl.tasks.task import Task
from mttl.tasks.template import Record

MOST_HELD_OUT = 100


@dataclass(frozen=True)
class Collection:
    """Functions of a collection, whose last argument is the folder of its downloaded copy.

    ``tasks`` lists the tasks with their sides; ``files`` are those that a task is read from, also
    missing ones; ``records`` yields the records of one of its splits.
    """

    tasks: Callable[[Path], list[Task]]
    files: Callable[[Task, Path], list[Path]]
    records: Callable[[Task, str, Path], Iterator[Record]]


def part(items: Sequence[Any], split: str) -> Sequence[Any]:
    """Return one of three parts: the first 100 items are test, the next 100 dev, others train.

    Of fewer than 200 items half are test; of the others, dev takes at most half.
    """
    n_test = min(MOST_HELD_OUT, len(items) // 2)
    n_dev = min(MOST_HELD_OUT, (len(items) - n_test) // 2)
    bounds = {"test": (0, n_test), "dev": (n_test, n_test + n_dev), "train": (n_test + n_dev, None)}
    return items[slice(*bounds[split])]
