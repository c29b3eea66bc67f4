"""A partition: which tasks are trained together, and which are kept for development and test.

A JSON file ``{"train": [...], "dev": [...], "test": [...]}``; `dev` and `test` may be left out. A
task stands in one list only: a test task that was trained on would make the scores meaningless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError, nearest, some
from mttl.io.reading import check_name, read_json, shown
from mttl.tasks.folder import Gym

SIDES = ("train", "dev", "test")
MEAN = "mean"  # what tables call the mean over tasks


@dataclass(frozen=True)
class Partition:
    """The names of the tasks on each side, in the order of the file."""

    train: tuple[str, ...]
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


def load_partition(path: str | Path) -> Partition:
    """Read and check a partition file.

    Raises:
        TaskError: If the file is missing or not JSON, has another key, names a task twice, or
            trains no task.
    """
    return parse_partition(read_json(path, TaskError), str(path))


def parse_partition(sides: Any, path: str) -> Partition:
    """Check a partition.

    Raises:
        TaskError: As for `load_partition`.
    """
    if not isinstance(sides, dict):
        raise TaskError(
            f"'{path}' holds {shown(sides)}; a partition is an object with the lists "
            f"{', '.join(SIDES)}."
        )
    for side in sides:
        if side not in SIDES:
            raise TaskError(
                f"'{path}': unknown key '{side}'; a partition has {', '.join(SIDES)}."
                f"{nearest(side, SIDES)}"
            )
    first_place: dict[str, str] = {}
    for side, names in sides.items():
        if not isinstance(names, list):
            raise TaskError(f"'{path}': '{side}' is {shown(names)}; it must be a list of tasks.")
        for i, name in enumerate(names):
            place = f"{side}[{i}]"
            check_name(name, f"'{path}': {place}", TaskError)
            if name in first_place:
                raise TaskError(
                    f"'{path}' names the task '{name}' twice: {first_place[name]} and {place}."
                )
            first_place[name] = place
    if not sides.get("train"):
        raise TaskError(f"'{path}' trains no task: its list 'train' is empty or absent.")
    return Partition(**{side: tuple(names) for side, names in sides.items()})


def select_tasks(partition_tasks: Sequence[str], gym: Gym, skip_missing: bool) -> list[str]:
    """Return the tasks of a partition that the gym holds, in the partition's order.

    Raises:
        TaskError: If tasks are absent and must not be skipped, if none is left, or if one has a
            name that tables need.
    """
    refuse_reserved(partition_tasks, gym)
    held = set(gym.tasks())
    absent = [task for task in partition_tasks if task not in held]
    if absent and (not skip_missing or len(absent) == len(partition_tasks)):
        shown = some([f"'{task}'" for task in absent], 10)
        remedy = (
            "none would be left: is data.dir or data.partition another gym's?"
            if len(absent) == len(partition_tasks)
            else "build them, or set data.skip_missing=true to go on without them."
        )
        hint = nearest(absent[0], held) if len(absent) == 1 else ""
        raise TaskError(
            f"the gym '{gym.directory}' lacks {len(absent)} of the partition's "
            f"{len(partition_tasks)} tasks: {shown}; {remedy}{hint}"
        )
    return [task for task in partition_tasks if task in held]


def refuse_reserved(tasks: Sequence[str], gym: Gym) -> None:
    """Refuse a task whose scores would be taken for the mean over all.

    Raises:
        TaskError: If there is one.
    """
    if MEAN in tasks:
        raise TaskError(
            f"a task of '{gym.directory}' is called '{MEAN}', as tables call the mean over tasks: "
            "give its folder and files another name"
        )
