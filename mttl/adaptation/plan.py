"""Few-shot jobs: which there are, what one scored, and the folder that keeps the results.

The results of a folder are all of the same settings and inventory.
"""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass

from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
from mttl.adaptation.shard import Shard
from mttl.config.data_schema import Data
from mttl.data.chosen_tasks import partition_of
from mttl.io.errors import ConfigError, TaskError
from mttl.io.files import write_text
from mttl.io.reading import read_text
from mttl.io.record import STRICT
from mttl.tasks.folder import Gym
from mttl.tasks.partition import refuse_reserved, select_tasks

# A score, which is null in a file where the metric is undefined, or nothing was scored.
Score = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value),
]


@dataclass(frozen=True)
class FewShotJob:
    """One adaptation: a task, one of its few-shot samples, and a seed."""

    task: str
    sample: int
    seed: int

    def __str__(self) -> str:
        """Name the job in a message."""
        return f"{self.task}, sample {self.sample}, seed {self.seed}"


@dataclass(frozen=True, config=STRICT)
class FewShotResult:
    """What one job scored.

    Attributes:
        dev: Score on the development rows, by which the weights were chosen.
        test: Score on the test rows; NaN if they were not scored.
        step: The step whose weights were kept; 0 is before training.
        n_trained: Number of trained parameters.
        n_empty: Number of empty test answers, or of development answers if no test row was scored.
        n_answers: Number of answers.
        begun_as: The trained task whose routing weights were the start, if one was chosen.
        rows: Digest of rows and metric, `mttl.tasks.folder.Gym.digest`.
    """

    task: str
    sample: int
    seed: int
    metric: str
    dev: Score
    test: Score
    step: int
    n_trained: int
    n_empty: int
    n_answers: int = 0
    begun_as: str | None = None
    rows: str = ""

    @property
    def job(self) -> FewShotJob:
        """The job it belongs to."""
        return FewShotJob(self.task, self.sample, self.seed)


def new_tasks(
    wanted: str | Sequence[str],
    data: Data,
    gym: Gym,
    seen: Sequence[str],
    *,
    allow_seen: bool = False,
) -> list[str]:
    """Return the tasks to adapt to.

    Wanted are ``"test"`` or ``"dev"``, that side of the partition, or names, as a sequence or
    joined by commas. The inventory was trained on those that are ``seen``.

    Raises:
        TaskError: If there is none, one is not in the gym, or one was seen in training.
    """
    if isinstance(wanted, str) and wanted in ("test", "dev"):
        names = getattr(partition_of(data, gym), wanted)
        tasks = select_tasks(names, gym, data.skip_missing) if names else []
    else:
        if isinstance(wanted, str):
            wanted = [name.strip() for name in wanted.split(",") if name.strip()]
        tasks = list(dict.fromkeys(wanted))
        refuse_reserved(tasks, gym)
        for task in tasks:
            gym.samples(task)  # answers an unknown name
    if not tasks:
        raise TaskError(
            "--tasks names no task: give names joined by commas, or test or dev if "
            f"'{data.partition}' has such tasks"
        )
    known = [task for task in tasks if task in seen]
    if known and not allow_seen:
        raise TaskError(
            f"the inventory was trained on {', '.join(known)}: a score there says nothing about "
            "new tasks. Leave them out, or add --allow-seen (allow_seen=True in a call)"
        )
    return tasks


def read_samples(text: str | None) -> list[int] | None:
    """Return the few-shot samples that ``--samples 13,21`` names; None stands for all."""
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
    n_examples: int | None = None,
) -> list[FewShotJob]:
    """Return a job per task, few-shot sample and seed; by default of all samples of a task.

    All rows are read once, so that a malformed file is found before the first job. Files of splits
    that are not scored need not exist.

    Raises:
        TaskError: If no sample is named, a task has no metric, or a sample is absent, lacks a
            split, holds a malformed row, or has fewer training rows than its k, or than are wanted.
    """
    if samples is not None and not samples:
        raise TaskError("samples is empty; name some, or leave it out to take all")
    jobs = []
    for task in tasks:
        k = gym.shots(task)
        gym.metric(task)
        for sample in dict.fromkeys(gym.samples(task) if samples is None else samples):
            for split in splits:
                gym.rows(task, split, sample)
            n_rows = len(gym.rows(task, "train", sample))
            if k is not None and n_rows < k:
                raise TaskError(
                    f"'{gym.file(task, 'train', sample)}' has {n_rows} rows, fewer than the "
                    f"{k} in its name. Build the task again"
                )
            if n_examples is not None and n_rows < n_examples:
                raise TaskError(
                    f"adapt.examples ({n_examples}) must be at most {n_rows}, the training rows in "
                    f"'{gym.file(task, 'train', sample)}'; lower it, or leave it out to take all"
                )
            jobs += [FewShotJob(task, sample, seed) for seed in seeds]
    return jobs


# Settings that have no part in a job's result: those of the run, and which jobs there are …
MAY_CHANGE = (
    *("run.", "backbone.", "skills.", "router.", "trainer.", "search."),
    *("adapt.seeds", "adapt.levels"),
)
# … but for what adaptation shares with training.
SHARED = ("trainer.precision",)
# Where results may stand: in the folder itself, or in those of its trials.
RESULTS = ("results*.jsonl", "trials/*/results*.jsonl")


class Results(ResumableJobs[FewShotResult]):
    """The finished jobs of a folder, or without one, in memory: a line each in ``results*.jsonl``.

    Every part reads the files of all and writes its own, so several machines may share a folder.
    """

    advice = " (several processes of mttl adapt share the jobs with --shard I/N)"

    def __init__(self, folder: Path | None, shard: Shard | None = None) -> None:
        path = folder / (shard or Shard()).file if folder else None
        super().__init__(path, FewShotResult, folder.glob("results*.jsonl") if folder else ())


def check_folder(
    folder: Path, settings: str, inventory: str, *, shared: tuple[str, ...] = SHARED
) -> None:
    """Write the origin of new results, YAML and a digest, or refuse to mix them with others.

    ``shared`` names settings of training that adaptation depends on, too.

    Raises:
        ConfigError: If results there were made with other settings or from another inventory.
    """
    source = folder / "inventory.sha256"
    if any(path for pattern in RESULTS for path in folder.glob(pattern)):
        before = read_text(source, ConfigError).strip() if source.is_file() else "unknown"
        if before != inventory:
            raise ConfigError(
                f"the results in '{folder}' are of another inventory ({before[:12]} before, "
                f"{inventory[:12]} now): of another run, or of this one before it was trained on. "
                "Use another folder with --out (out= in a call), or delete this one"
            )
    problem = f"the results in '{folder}' were made with other settings"
    advice = "Use those, or another folder with --out (out= in a call)"
    keep_settings(folder / "config.yaml", settings, problem, advice, MAY_CHANGE, shared)
    write_text(source, f"{inventory}\n")


def check_rows(
    folder: Path, jobs: Collection[FewShotJob], digest: Callable[[str, int], str]
) -> None:
    """Refuse to continue with results of rows that have changed in the gym since.

    Raises:
        ConfigError: If a finished job had other rows, or was scored by another metric.
    """
    places = sorted({path.parent for pattern in RESULTS for path in folder.glob(pattern)})
    finished = [result for place in places for result in Results(place).finished.values()]
    # Seeds share the rows of a sample, and so do the trials of a search.
    noted = {(x.task, x.sample, x.rows) for x in finished if x.rows and x.job in jobs}
    other = {task for task, sample, rows in noted if rows != digest(task, sample)}
    if other:
        raise ConfigError(
            f"the results in '{folder}' are of other rows, or another metric, than the gym has "
            f"now: {', '.join(sorted(other))}. Use another folder with --out (out= in a call), "
            "or delete this one"
        )
