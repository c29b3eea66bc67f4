"""Which adaptations to run, by whom, and the files of those that have ended."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mttl.data.gym import Gym
from mttl.data.partition import load_partition, select_tasks
from mttl.errors import ConfigError, TaskError
from mttl.files import write_text
from mttl.training.few_shot import FewShotJob, FewShotResult
from mttl.training.run_folder import changed_settings

# Settings that have no part in a job's result: those of the run, and how often to repeat.
MAY_CHANGE = ("run.", "backbone.", "skills.", "router.", "trainer.", "search.", "adapt.seeds")


def new_tasks(
    wanted: str,
    partition: Path,
    gym: Gym,
    seen: Sequence[str],
    *,
    skip_missing: bool = False,
    allow_seen: bool = False,
) -> list[str]:
    """Return the tasks to adapt to.

    Args:
        wanted: ``"test"`` or ``"dev"`` for that side of the partition, or names joined by commas.
        partition: The partition's file.
        gym: Where the rows are.
        seen: Tasks that the inventory was trained on.
        skip_missing: Leave out tasks that the gym does not hold.
        allow_seen: Take tasks of training too.

    Raises:
        TaskError: If there is none, one is not in the gym, or one was seen in training.
    """
    if wanted in ("test", "dev"):
        names = getattr(load_partition(partition), wanted)
        if not names:
            raise TaskError(f"'{partition}' has no {wanted} tasks; name tasks with --tasks a,b")
        tasks = select_tasks(names, gym, skip_missing)
    else:
        tasks = list(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
        if not tasks:
            raise TaskError("--tasks names no task; give test, dev or names joined by commas")
        for task in tasks:
            gym.samples(task)  # answers an unknown name
    known = [task for task in tasks if task in seen]
    if known and not allow_seen:
        raise TaskError(
            f"the inventory was trained on {', '.join(known)}: a score there says nothing about "
            "new tasks. Leave them out, or add --allow-seen (allow_seen=True in a call)"
        )
    return tasks


def read_samples(text: str | None) -> list[int] | None:
    """Return the few-shot samples that ``--samples 13,21`` names; None stands for all.

    Raises:
        TaskError: If they are no numbers joined by commas.
    """
    if text is None:
        return None
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise TaskError(f"--samples '{text}' must be numbers joined by commas, such as 13,21")
    return list(dict.fromkeys(map(int, numbers)))


def plan_jobs(
    gym: Gym,
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    samples: Sequence[int] | None = None,
    splits: Sequence[str] = ("dev", "test"),
) -> list[FewShotJob]:
    """Return a job per task, few-shot sample and seed.

    Args:
        gym: Where the rows are.
        tasks: Their names.
        seeds: Of noise and order.
        samples: Which few-shot samples; all of a task by default.
        splits: The splits that will be scored; files of others need not exist.

    Raises:
        TaskError: If a sample is absent, lacks a split, or has fewer training rows than its k.
    """
    if samples is not None and not samples:
        raise TaskError("samples is empty; name some, or leave it out to take all")
    jobs = []
    for task in tasks:
        k = gym.shots(task)
        for sample in gym.samples(task) if samples is None else samples:
            for split in splits:
                gym.file(task, split, sample)
            n_rows = len(gym.rows(task, "train", sample))
            if n_rows < k:
                raise TaskError(
                    f"'{gym.file(task, 'train', sample)}' has {n_rows} rows, fewer than the "
                    f"{k} in its name. Build the task again"
                )
            jobs += [FewShotJob(task, sample, seed) for seed in seeds]
    return jobs


@dataclass(frozen=True)
class Shard:
    """One part of several that share the jobs.

    Args:
        number: Which part, from 1.
        n_shards: Parts in all.

    Raises:
        TaskError: If there is no such part.
    """

    number: int = 1
    n_shards: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.n_shards:
            raise TaskError(
                f"shard {self.number}/{self.n_shards}: the first number must lie between 1 and "
                "the second"
            )

    def share(self, jobs: Sequence[FewShotJob]) -> list[FewShotJob]:
        """Return the jobs of this part."""
        return list(jobs[self.number - 1 :: self.n_shards])

    @property
    def file(self) -> str:
        """The name of the file that this part writes."""
        if self.n_shards == 1:
            return "results.jsonl"
        return f"results-{self.number}-of-{self.n_shards}.jsonl"


class Results:
    """The finished jobs of a folder: a line per job in ``results*.jsonl``, whole or not there.

    Every part reads the files of all and writes one of its own, so that several machines may share
    a folder.

    Args:
        folder: Where the files are.
        shard: The part that writes; a last line of its file that was cut off is dropped.
    """

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        self.path = folder / (shard or Shard()).file
        self.finished: dict[FewShotJob, FewShotResult] = {}
        for path in sorted(folder.glob("results*.jsonl")):
            whole, _, cut_off = path.read_text(encoding="utf-8").rpartition("\n")
            if cut_off and path == self.path:
                write_text(path, whole + "\n" if whole else "")
            for line in whole.splitlines():
                result = FewShotResult.from_row(json.loads(line))
                self.finished[result.job] = result

    def add(self, result: FewShotResult) -> None:
        """Append a line and flush it to the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.row()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished[result.job] = result


def check_settings(path: Path, text: str) -> None:
    """Write the settings of new results, or refuse to mix them with those of other settings.

    Args:
        path: The file of the folder's settings.
        text: The resolved configuration, as YAML.

    Raises:
        ConfigError: If a setting with a part in the results is another than in the file.
    """
    if path.is_file():
        changed = changed_settings(path.read_text(encoding="utf-8"), text, MAY_CHANGE)
        if changed:
            raise ConfigError(
                f"the results in '{path.parent}' were made with other settings: "
                f"{', '.join(changed)}. Use those, or another folder with --out (out= in a call)"
            )
    write_text(path, text)
