"""The scores of several runs of one configuration in a table: mean and deviation per task."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from mttl.checkpoints.run_folder import PLACE, RunFolder, differing_settings, seed_of
from mttl.errors import MttlError
from mttl.io.reading import read_table, to_number
from mttl.tasks.partition import MEAN

# What training and scoring do not depend on.
MAY_DIFFER = (*PLACE, "run.seed", "adapt.", "search.", "data.cache_dir", "trainer.loggers")
Scores = dict[tuple[str, str], list[float]]  # (task, split) -> a score per run


def summary(runs: Sequence[Path]) -> str:
    """Return a Markdown table with the scores of runs that differ in their seeds alone.

    The baselines are those of the first run.

    Raises:
        MttlError: If runs differ in more than their seed, or have no results.
    """
    check_alike(runs)
    scores: Scores = {}
    for run in runs:
        for key, value in task_means(RunFolder(run).require_results()).items():
            scores.setdefault(key, []).append(value)
    path = RunFolder(runs[0]).baselines
    names = ("copy", "majority") if path.is_file() else ()  # BabyAI has none
    baselines = {name: task_means(path, name) for name in names}
    return markdown(scores, baselines, len(runs))


def check_alike(runs: Sequence[Path]) -> None:
    """Refuse runs whose mean would mean nothing.

    Raises:
        MttlError: If two differ in more than their seed, or are of one seed.
    """
    seeds: dict[int, Path] = {}
    for run in runs if len(runs) > 1 else []:
        if different := differing_settings(runs[0], run, ignore=MAY_DIFFER):
            raise MttlError(
                f"'{runs[0]}' and '{run}' differ in more than their seed: {', '.join(different)}. "
                "Summarise runs of one configuration; compare others with mttl compare --runs"
            )
        seed = seed_of(run)
        if seed in seeds:
            raise MttlError(f"'{seeds[seed]}' and '{run}' have one seed, {seed}: name one of them")
        seeds[seed] = run


def task_means(path: Path, baseline: str | None = None) -> dict[tuple[str, str], float]:
    """Return a score per task and split, averaged over few-shot samples, in per cent."""
    found: Scores = {}
    for row in read_table(path, MttlError, ["task", "split", "score"]):
        if row.get("baseline") == baseline and row.get("metric") != "steps":
            score = to_number(row["score"], f"'{path}': a score", MttlError)
            chosen = row.get("sample", "")
            split = f"{row['split']} {chosen}" if chosen in ("greedy", "sampled") else row["split"]
            found.setdefault((row["task"], split), []).append(100 * score)
    return {key: mean_of_known(values) for key, values in found.items()}


def mean_of_known(values: Sequence[float]) -> float:
    """Return the mean with 0 for what is undefined; NaN if all are, as runs count samples."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(values) if known else math.nan


def markdown(
    scores: Scores, baselines: dict[str, dict[tuple[str, str], float]], n_runs: int
) -> str:
    """Return the table; its last line is the mean over tasks."""
    splits = list(dict.fromkeys(split for _, split in scores))
    tasks = [task for task in dict.fromkeys(task for task, _ in scores) if task != MEAN]
    columns = [name for split in splits for name in (split, *baselines)]
    lines = [
        f"Per cent; mean ± standard deviation over {n_runs} runs.",
        "",
        "| task | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for task in (*tasks, MEAN):
        cells = [f"`{task}`" if task != MEAN else "**mean**"]
        for split in splits:
            cells.append(spread(scores.get((task, split), [])))
            cells += [spread([table.get((task, split), math.nan)]) for table in baselines.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return ``mean ± deviation``, or the value alone, or nothing; of scores that are defined."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "NaN" if values else ""
    text = f"{statistics.fmean(known):.1f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.1f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)})"
