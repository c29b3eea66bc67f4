"""The tasks that a configuration names: their gym, built first for custom tasks."""

import logging
from collections.abc import Sequence
from pathlib import Path

from mttl.config.data_schema import Data
from mttl.config.load import resolve_folder, resolve_path
from mttl.io.errors import ConfigError, TaskError
from mttl.io.files import locked
from mttl.io.record import check
from mttl.io.shipped_files import shipped_folder
from mttl.tasks.building.build_gym import build_task
from mttl.tasks.building.task_table import update_task_table
from mttl.tasks.folder import Gym
from mttl.tasks.partition import SIDES, Partition
from mttl.tasks.task_file import load_tasks

_log = logging.getLogger(__name__)

AUTO = "auto"


def gym_folder(data: Data) -> Path:
    """Return the folder of the gym; without `data.dir` it lies beside the file of the tasks."""
    if data.dir is not None:
        return resolve_folder(data.dir)
    assert data.tasks is not None  # the schema asks for one of them
    return resolve_path(data.tasks, "data.tasks").with_suffix(".gym")


def open_gym(data: Data, samples: Sequence[int] | None = None) -> Gym:
    """Return the gym, with the tasks of `data.tasks` built into it.

    What is complete is not built again, and processes that start together wait for one another.

    Raises:
        ConfigError: If `data.tasks` would be built into a gym that ships.
        TaskError: If the gym holds no task, or one of `data.tasks` cannot be read or built.
    """
    folder = gym_folder(data)
    if data.tasks is None:
        return Gym(folder, data.metrics)
    file = resolve_path(data.tasks, "data.tasks")
    tasks = load_tasks(file)
    if _ships(folder):
        raise ConfigError(
            f"the tasks of data.tasks ('{file}') would be built into data.dir ('{data.dir}'), a "
            "gym that ships with mttl: add data.dir=null, which puts them beside their file, or "
            "name another folder. data.partition=auto trains them and no others"
        )
    with locked(folder / ".lock", wait=True):
        for task in tasks.values():
            outcome = build_task(task, folder, samples=samples or data.samples)
            if outcome.status != "built":
                named = "" if task.name in outcome.detail else f"task '{task.name}': "
                raise TaskError(f"data.tasks ('{file}'): {named}{outcome.detail}")
            if not outcome.skipped:
                _log.info("built the task '%s' into '%s'", task.name, folder)
        update_task_table(folder, tasks.values())
    return Gym(folder, data.metrics)


def _ships(folder: Path) -> bool:
    """Return whether a gym ships with mttl."""
    shipped = (shipped_folder() / "data").resolve()
    return folder.resolve().parent == shipped and (folder / "README.md").is_file()


def partition_of(data: Data, gym: Gym) -> Partition:
    """Return which tasks are trained, and which are kept for development and test.

    Raises:
        TaskError: If it names a task twice, or trains none.
    """
    if isinstance(data.partition, dict):
        return check(Partition, data.partition, "data.partition", TaskError)
    if data.partition != AUTO:
        return Partition.read(resolve_path(data.partition, "data.partition"))
    if data.tasks is None:
        return check(Partition, {"train": gym.tasks()}, f"'{gym.directory}'", TaskError)
    tasks = load_tasks(resolve_path(data.tasks, "data.tasks")).values()
    sides = {side: [task.name for task in tasks if task.side == side] for side in SIDES}
    if not sides["train"]:
        raise TaskError(
            f"data.tasks ('{data.tasks}') trains no task: every one is of another `side`. Leave "
            "`side` out of those to train, or name a partition with data.partition"
        )
    return check(Partition, sides, data.tasks, TaskError)
