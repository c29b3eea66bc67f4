"""Results of few-shot jobs in a table."""

import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.gains import average_relative_gain, comparable_tasks, interval
from mttl.training.text_to_text import mean_score


def by_task(results: Iterable[FewShotResult], split: str = "test") -> dict[str, list[float]]:
    """Return the scores of every task."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(result.task, []).append(getattr(result, split))
    return scores


def silent_tasks(results: Iterable[FewShotResult]) -> list[str]:
    """Return the tasks on which every answer of every job is empty."""
    speaking: dict[str, bool] = {}
    for result in results:
        silent = result.n_answers is not None and 0 < result.n_answers <= result.n_empty
        speaking[result.task] = speaking.get(result.task, False) or not silent
    return [task for task, speaks in speaking.items() if not speaks]


def few_shot_table(
    results: Sequence[FewShotResult],
    title: str = "Adaptation (per cent)",
    reference: Sequence[FewShotResult] = (),
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
    table.caption_justify = "left"
    if not results:
        table.caption = "No job has ended yet"
        return table
    means = [mean_score([mean_score(group) for group in x.values()]) for x in (dev, test)]
    table.add_section()
    table.add_row("mean", "", *(f"{100 * float(mean):.1f}" for mean in means), str(len(results)))
    parts = [
        _interval(results),
        _gain(test, by_task(reference)),
        _undefined(results),
        _empty(results),
    ]
    table.caption = ". ".join(part for part in parts if part)
    return table


def _interval(results: Sequence[FewShotResult]) -> str:
    samples: dict[str, dict[int, list[float]]] = {}
    for result in results:
        of_task = samples.setdefault(result.task, {})
        of_task.setdefault(result.sample, []).append(result.test)
    few = [task for task, of_task in samples.items() if len(of_task) < 2]
    if few:
        return (
            "No interval of the mean: it needs two samples of every task (seeds of one sample are "
            f"no independent samples), and there are fewer of {some(few)}"
        )
    low, high = interval({task: list(of_task.values()) for task, of_task in samples.items()})
    if low == high:
        return "No interval of the mean: every sample scored alike"
    return (
        "95 % bootstrap interval of the mean test score over samples, and seeds within them: "
        f"{100 * low:.1f} to {100 * high:.1f}"
    )


def _gain(scores: dict[str, list[float]], reference: dict[str, list[float]]) -> str:
    if not reference:
        return ""
    tasks = comparable_tasks(scores, reference)
    if not tasks:
        return (
            "No average relative gain: the reference has no task of these with a score above 0, "
            "so there is nothing to compare with"
        )
    gain = average_relative_gain(scores, reference)
    left_out = len(scores) - len(tasks)
    note = f"; {left_out} of {len(scores)} tasks left out, no score above 0 there"
    return (
        f"Average relative gain over the reference: {100 * gain:+.1f} % (tasks with a reference "
        f"near zero dominate it; compare the means too{note if left_out else ''})"
    )


def _undefined(results: Sequence[FewShotResult]) -> str:
    counts = {
        split: sum(math.isnan(getattr(result, split)) for result in results)
        for split in ("dev", "test")
    }
    if not any(counts.values()):
        return ""
    found = " and ".join(f"{count} {split}" for split, count in counts.items() if count)
    return f"Undefined scores count as 0: {found}"


def _empty(results: Sequence[FewShotResult]) -> str:
    n_empty = sum(result.n_empty for result in results)
    if not n_empty:
        return ""
    counts = [result.n_answers for result in results if result.n_answers is not None]
    out_of = f" of {sum(counts)}" if len(counts) == len(results) else ""
    silent = silent_tasks(results)
    named = f"; all answers are empty on {some(silent)}" if silent else ""
    return f"{n_empty}{out_of} answers are empty{named}"


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names joined by commas, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _spread(scores: Sequence[float]) -> str:
    """An undefined score counts as 0, as in the mean."""
    values = [0.0 if math.isnan(score) else score for score in scores]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{100 * mean:.1f}"
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}"
