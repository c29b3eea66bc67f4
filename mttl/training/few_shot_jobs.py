"""Which adaptations to run, by whom, and the files of those that have ended."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from mttl.data.gym import Gym
from mttl.data.partition import load_partition, select_tasks
from mttl.errors import TaskError
from mttl.files import write_text
from mttl.training.few_shot import (
    FewShotJob,
    FewShotResult,
    average_relative_gain,
    interval,
)
from mttl.training.text_to_text import mean_score


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
        tasks = [name.strip() for name in wanted.split(",") if name.strip()]
        if not tasks:
            raise TaskError("--tasks names no task; give test, dev or names joined by commas")
        for task in tasks:
            gym.samples(task)  # answers an unknown name
    known = [task for task in tasks if task in seen]
    if known and not allow_seen:
        raise TaskError(
            f"the inventory was trained on {', '.join(known)}: a score there says nothing about "
            "new tasks. Leave them out, or add --allow-seen"
        )
    return tasks


def plan_jobs(gym: Gym, tasks: Sequence[str], seeds: Sequence[int]) -> list[FewShotJob]:
    """Return a job per task, few-shot sample and seed.

    Raises:
        TaskError: If a sample lacks a split, or has fewer training rows than its k.
    """
    jobs = []
    for task in tasks:
        k = gym.shots(task)
        for sample in gym.samples(task):
            for split in ("dev", "test"):
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


def by_task(results: Iterable[FewShotResult], split: str = "test") -> dict[str, list[float]]:
    """Return the scores of every task.

    Args:
        results: Of any jobs.
        split: ``"dev"`` or ``"test"``.
    """
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(result.task, []).append(getattr(result, split))
    return scores


def few_shot_table(
    results: Sequence[FewShotResult], title: str, reference: Sequence[FewShotResult] = ()
) -> Table:
    """Return mean ± standard deviation per task in per cent, and the mean over tasks.

    Args:
        results: Of all jobs.
        title: Heads the table.
        reference: Results to state the average relative gain over.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("task", overflow="fold")
    table.add_column("metric", overflow="fold")
    for heading in ("dev", "test", "jobs"):
        table.add_column(heading, justify="right", no_wrap=True)
    metrics = {result.task: result.metric for result in results}
    dev, test = by_task(results, "dev"), by_task(results, "test")
    for task, scores in test.items():
        cells = (_spread(dev[task]), _spread(scores), str(len(scores)))
        table.add_row(task, metrics[task], *cells)
    means = [mean_score([mean_score(group) for group in x.values()]) for x in (dev, test)]
    table.add_section()
    table.add_row("mean", "", *(f"{100 * float(mean):.1f}" for mean in means), str(len(results)))
    table.caption = _caption(test, by_task(reference), sum(result.n_empty for result in results))
    table.caption_justify = "left"
    return table


def _caption(
    scores: dict[str, list[float]], reference: dict[str, list[float]], n_empty: int
) -> str:
    low, high = interval(scores)
    parts = [
        "95 % bootstrap interval of the mean test score over samples and seeds: "
        f"{100 * low:.1f} to {100 * high:.1f}"
    ]
    if reference:
        gain = average_relative_gain(scores, reference)
        parts.append(
            f"Average relative gain over the reference: {100 * gain:+.1f} % (tasks with a "
            "reference near zero dominate it; compare the means too)"
        )
    if n_empty:
        parts.append(f"{n_empty} test answers are empty")
    return ". ".join(parts)


def _spread(scores: Sequence[float]) -> str:
    mean = sum(scores) / len(scores)
    if len(scores) == 1:
        return f"{100 * mean:.1f}"
    deviation = (sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)) ** 0.5
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}"
