"""Few-shot jobs, their results, and the folder of results.

All results in a folder have the same settings and inventory.
"""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator
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

SUCCESS = "success"  # the metric of policies
# A score; null in a file if it is undefined or was not computed.
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
        sample = f", sample {self.sample}" if self.sample else ""  # levels have none
        return f"{self.task}{sample}, seed {self.seed}"


@dataclass(frozen=True, config=STRICT)
class FewShotResult:
    """Scores of one job; answers are those to development rows if the test was not scored.

    Those of a level are the success rates of a policy's most probable actions.
    """

    task: str
    sample: int
    seed: int
    metric: str
    dev: Score  # on the development rows, which selected the weights
    test: Score  # on the test rows; NaN if they were not scored
    step: int  # step of the selected weights; 0 is before training
    n_trained: int  # number of trained parameters
    n_empty: int  # number of empty answers
    n_answers: int = 0
    begun_as: str | None = None  # trained task whose routing weights were the initial ones
    rows: str = ""  # digest of rows and metric, from `mttl.tasks.folder.Gym.digest`

    @model_validator(mode="before")
    @classmethod
    def _of_level(cls, row: Any) -> Any:
        """Accept a `mttl.babyai.new_levels.LevelResult` as well."""
        if not isinstance(row, dict) or "level" not in row:
            return row
        rates = dict.fromkeys(("dev", "test"), row.get("greedy"))
        names = {"task": row["level"], "sample": 0, "metric": SUCCESS, "step": 0, "n_empty": 0}
        return names | rates | {name: row.get(name) for name in ("seed", "n_trained")}

    @property
    def job(self) -> FewShotJob:
        """Job of this result."""
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

    ``wanted`` is ``"test"`` or ``"dev"`` of the partition, or names, as a sequence or separated by
    commas. ``seen`` are the training tasks. Raises a `TaskError` if there is no task, or one is
    unknown or was trained on.
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
            gym.samples(task)  # rejects unknown names
    if not tasks:
        raise TaskError(
            "--tasks selects no task (test and dev are sides of the partition "
            f"'{data.partition}'). Give a file of new tasks (--tasks FILE.yaml) or names separated "
            "by commas, or write `side: test` under a new task in the task file of the training"
        )
    known = [task for task in tasks if task in seen]
    if known and not allow_seen:
        raise TaskError(
            f"the run was trained on {', '.join(known)}, so these are not new tasks. Remove them, "
            "or add --allow-seen (allow_seen=True in Python)"
        )
    return tasks


def read_samples(text: str | None) -> list[int] | None:
    """Return the few-shot samples in ``--samples 13,21``; None stands for all."""
    if text is None:
        return None
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise TaskError(f"--samples '{text}' must be numbers separated by commas, such as 13,21")
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
    """Return a job per task, few-shot sample and seed; by default of all samples.

    All rows are read once, so that malformed files are found before the first job. Splits that are
    not scored may be missing. Raises a `TaskError` if a task has no metric, or a sample is missing,
    lacks a split, has a malformed row, or has fewer training rows than requested.
    """
    jobs = []
    for task in tasks:
        gym.metric(task)
        for sample in dict.fromkeys(gym.samples(task) if samples is None else samples):
            for split in splits:
                gym.rows(task, split, sample)
            n_rows = len(gym.rows(task, "train", sample))
            if n_examples is not None and n_rows < n_examples:
                raise TaskError(
                    f"adapt.examples ({n_examples}) must be at most {n_rows}, the training rows in "
                    f"'{gym.file(task, 'train', sample)}'; lower it, or remove it to use all"
                )
            jobs += [FewShotJob(task, sample, seed) for seed in seeds]
    return jobs


# Settings that do not affect a job's result …
MAY_CHANGE = (
    *("run.", "backbone.", "skills.", "router.", "trainer.", "search."),
    *("adapt.seeds", "adapt.levels"),
)
# … except those that adaptation shares with training.
SHARED = ("trainer.precision",)
# Files of results, in the folder or in those of its trials.
RESULTS = ("results*.jsonl", "trials/*/results*.jsonl")


class Results(ResumableJobs[FewShotResult]):
    """Finished jobs of a folder, one line each in ``results*.jsonl``; in memory without a folder.

    Every shard reads all files and writes its own, so several machines may share a folder.
    """

    advice = " (several processes of mttl adapt share the jobs with --shard I/N)"

    def __init__(self, folder: Path | None, shard: Shard | None = None) -> None:
        path = folder / (shard or Shard()).file if folder else None
        super().__init__(path, FewShotResult, folder.glob("results*.jsonl") if folder else ())


def check_folder(
    folder: Path, settings: str, inventory: str, *, shared: tuple[str, ...] = SHARED
) -> None:
    """Record the settings and inventory of new results; reject a folder with different ones.

    ``shared`` names training settings that adaptation depends on. Raises a `ConfigError` if
    existing results have other settings or another inventory.
    """
    source = folder / "inventory.sha256"
    if any(path for pattern in RESULTS for path in folder.glob(pattern)):
        before = read_text(source, ConfigError).strip() if source.is_file() else "unknown"
        if before != inventory:
            raise ConfigError(
                f"the results in '{folder}' are of other skills (checksum {before[:12]}, now "
                f"{inventory[:12]}): of another run, or of this run before further training. Use "
                "another folder with --out (out= in Python), or delete this one"
            )
    problem = f"the results in '{folder}' were made with other settings"
    advice = "Use those, or another folder with --out (out= in Python)"
    keep_settings(folder / "config.yaml", settings, problem, advice, MAY_CHANGE, shared)
    write_text(source, f"{inventory}\n")


def check_rows(
    folder: Path, jobs: Collection[FewShotJob], digest: Callable[[str, int], str]
) -> None:
    """Reject results whose task files have changed since.

    Raises a `ConfigError` if a finished job had other rows or another metric.
    """
    places = sorted({path.parent for pattern in RESULTS for path in folder.glob(pattern)})
    finished = [result for place in places for result in Results(place).finished.values()]
    # Seeds and trials share the rows of a sample.
    noted = {(x.task, x.sample, x.rows) for x in finished if x.rows and x.job in jobs}
    other = {task for task, sample, rows in noted if rows != digest(task, sample)}
    if other:
        raise ConfigError(
            f"the rows or the metric of {', '.join(sorted(other))} have changed since the results "
            f"in '{folder}' were made. Use another folder with --out (out= in Python), or delete "
            "this one"
        )
