"""Partitions: tasks for training, development and test.

A JSON file ``{"train": [...], "dev": [...], "test": [...]}``; `dev` and `test` are optional. A task
may be in one list only, since scores on training tasks are not scores on new tasks.
"""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from mttl.io.errors import TaskError, nearest, some
from mttl.io.record import Printable, Record
from mttl.tasks.folder import Gym

SIDES = ("train", "dev", "test")
MEAN = "mean"  # name of the mean over tasks in tables


class Partition(Record):
    """Names of the tasks on each side, in the order of the file."""

    error = TaskError
    advice = ""
    train: Annotated[tuple[Printable, ...], Field(min_length=1)]
    dev: tuple[Printable, ...] = ()
    test: tuple[Printable, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        places: dict[str, str] = {}
        for side in SIDES:
            for i, name in enumerate(getattr(self, side)):
                if (first := places.setdefault(name, f"{side}[{i}]")) != f"{side}[{i}]":
                    raise ValueError(f"names '{name}' twice: {first} and {side}[{i}]")
        return self


def select_tasks(partition_tasks: Sequence[str], gym: Gym, skip_missing: bool) -> list[str]:
    """Return the tasks of a partition that the gym has, in the partition's order.

    Raises a `TaskError` if tasks are missing and must not be skipped, if none remains, or by
    `refuse_reserved`.
    """
    refuse_reserved(partition_tasks, gym)
    held = set(gym.tasks())
    absent = [task for task in partition_tasks if task not in held]
    if absent and (not skip_missing or len(absent) == len(partition_tasks)):
        shown, hint = some([f"'{task}'" for task in absent], 10), nearest(absent[0], held)
        raise TaskError(
            f"{gym.place} lacks {len(absent)} of the partition's "
            f"{len(partition_tasks)} tasks: {shown}. Check data.dir and data.partition, build the "
            f"tasks, or set data.skip_missing=true to skip some.{hint}"
        )
    return [task for task in partition_tasks if task in held]


def refuse_reserved(tasks: Sequence[str], gym: Gym) -> None:
    """Raise a `TaskError` for a task named like the mean over tasks."""
    if MEAN in tasks:
        raise TaskError(f"a task in {gym.place} has the reserved name '{MEAN}'; rename it")
