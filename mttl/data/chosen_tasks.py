"""The tasks of a configuration: a gym, or custom tasks converted into the cache."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from mttl.config.data_schema import Data
from mttl.config.load import find_file, resolve_folder
from mttl.config.schema import Config
from mttl.io.errors import TaskError
from mttl.io.files import locked, new_folder
from mttl.io.reading import require_file
from mttl.io.record import check
from mttl.tasks.folder import Gym
from mttl.tasks.partition import SIDES, Partition, select_tasks
from mttl.tasks.rows import record_files
from mttl.tasks.sample_files import fingerprint, update_task_table, write_samples
from mttl.tasks.task import Task
from mttl.tasks.task_file import load_tasks

_log = logging.getLogger(__name__)


def cache_folder(config: Config) -> Path:
    """Return the cache folder for tokenised rows and converted tasks."""
    return Path(config.data.cache_dir or Path(config.run.dir) / ".cache")


def gym_folder(config: Config, samples: Sequence[int] | None = None) -> Path:
    """Return `data.dir`, or the cache folder of the custom tasks in `data.tasks`.

    Raises a `TaskError` if a custom task cannot be read, or its data are not local files.
    """
    data = config.data
    if data.dir is not None:
        return resolve_folder(data.dir)
    prints = [
        fingerprint(task, _files(task, data)) for task in load_tasks(str(data.tasks)).values()
    ]
    key = hashlib.sha256(repr((prints, samples or data.samples)).encode()).hexdigest()[:16]
    return cache_folder(config) / f"tasks-{key}"


def open_gym(config: Config, samples: Sequence[int] | None = None) -> Gym:
    """Return the gym; custom tasks of `data.tasks` are converted if they are not cached.

    Concurrent processes wait for each other. Raises a `TaskError` if the gym has no task, or a
    custom task cannot be read or converted.
    """
    data, folder = config.data, gym_folder(config, samples)
    if data.dir is None and not folder.exists():
        with locked(folder.with_suffix(".lock")):
            if not folder.exists():
                tasks = load_tasks(str(data.tasks))
                with new_folder(folder) as making:
                    for task in tasks.values():
                        (making / task.name).mkdir()
                        write_samples(task, making / task.name, samples or data.samples)
                    update_task_table(making, tasks.values())
                _log.info("converted the tasks %s", ", ".join(tasks))
    return Gym(folder, data.metrics, data.tasks or "")


def training_tasks(config: Config) -> tuple[Gym, list[str]]:
    """Return the gym and its training tasks."""
    gym = open_gym(config)
    return gym, select_tasks(partition_of(config.data, gym).train, gym, config.data.skip_missing)


def _files(task: Task, data: Data) -> list[Path]:
    """Return the data files of a custom task."""
    if task.source.path is not None:
        raise TaskError(
            f"data.tasks ('{data.tasks}'): the records of '{task.name}' are on the hub; run `mttl "
            f"build --config {data.tasks} --out DIR`, and set data.dir=DIR data.tasks=null"
        )
    files = [file for split in task.source.splits for file in record_files(split)]
    for file in files:
        require_file(file, TaskError)
    return files


def partition_of(data: Data, gym: Gym) -> Partition:
    """Return the partition into training, development and test tasks.

    Raises a `TaskError` if it contains a task twice, or has no training task.
    """
    if isinstance(data.partition, dict):
        return check(Partition, data.partition, "data.partition", TaskError)
    if data.partition != "auto":
        return Partition.read(find_file(data.partition, setting="data.partition"))
    if data.tasks is None:
        return check(Partition, {"train": gym.tasks()}, f"'{gym.directory}'", TaskError)
    tasks = load_tasks(str(data.tasks)).values()
    sides = {side: [task.name for task in tasks if task.side == side] for side in SIDES}
    if not sides["train"]:
        raise TaskError(
            f"data.tasks ('{data.tasks}') has no training task, because every task has another "
            "`side`. Remove `side` from training tasks, or set data.partition"
        )
    return check(Partition, sides, data.tasks, TaskError)
