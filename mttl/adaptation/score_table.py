"""Results of few-shot jobs in a table."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from mttl.adaptation.few_shot import FewShotResult
from mttl.analysis.bootstrap import mean_and_interval
from mttl.io.errors import some
from mttl.runtime.text_table import TextTable
from mttl.training.text_to_text import mean_score


def by_task(results: Iterable[FewShotResult], split: str = "test") -> dict[str, list[float]]:
    """Return the scores of every task."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(result.task, []).append(getattr(result, split))
    return scores


def scored_splits(results: Sequence[FewShotResult]) -> list[str]:
    """Return the splits that were scored: development rows are not where nothing was trained."""
    without = all(math.isnan(result.dev) and not result.n_trained for result in results)
    return ["test"] if without else ["dev", "test"]


def silent_tasks(results: Iterable[FewShotResult]) -> list[str]:
    """Return the tasks on which every answer of every job is empty."""
    speaking: dict[str, bool] = {}
    for result in results:
        silent = result.n_answers is not None and 0 < result.n_answers <= result.n_empty
        speaking[result.task] = speaking.get(result.task, False) or not silent
    return [task for task, speaks in speaking.items() if not speaks]


def few_shot_table(
    results: Sequence[FewShotResult],
    title: str = "Adaptation (%)",
    reference: Sequence[FewShotResult] = (),
) -> Table:
    """Return mean ± standard deviation per task in %, and the mean over tasks.

    Args:
        results: Of all jobs.
        title: Of the table.
        reference: Results to state the average relative gain over.
    """
    table = TextTable(title).words("task", "metric").numbers("dev", "test", "jobs")
    if not results:
        table.caption = "No job has ended yet"
        return table
    metrics = {result.task: result.metric for result in results}
    scores = {split: by_task(results, split) for split in scored_splits(results)}
    columns = [scores.get(split, {}) for split in ("dev", "test")]
    for task, own in scores["test"].items():
        cells = [_spread(column[task]) if column else "" for column in columns]
        table.add_row(task, metrics[task], *cells, str(len(own)))
    table.add_section()
    means = [_mean(column) if column else "" for column in columns]
    table.add_row("mean", "", *means, str(len(results)))
    parts = _interval(results), _gain(results, reference), _undefined(results), _empty(results)
    table.caption = ". ".join(part for part in parts if part)
    return table


def _mean(scores: dict[str, list[float]]) -> str:
    return f"{100 * float(mean_score([mean_score(group) for group in scores.values()])):.1f}"


def _interval(results: Sequence[FewShotResult]) -> str:
    samples: dict[str, set[int]] = {}
    for result in results:
        samples.setdefault(result.task, set()).add(result.sample)
    if few := [task for task, own in samples.items() if len(own) < 2]:
        return (
            "No interval of the mean: it needs two samples of every task (seeds of one sample are "
            f"not independent samples), and there are fewer of {some(few)}"
        )
    # Each task is a fold of its own, so that its samples are drawn apart from those of others.
    folds = {task: fold for fold, task in enumerate(sorted(samples))}
    scores = {
        (x.task, folds[x.task], x.sample, x.seed): 0.0 if math.isnan(x.test) else x.test
        for x in results
    }
    _, low, high = mean_and_interval(scores, draw_tasks=False)
    if math.isnan(low):
        return "No interval of the mean: all samples have equal scores"
    return (
        "95 % bootstrap interval of the mean test score over samples, and seeds within them: "
        f"{100 * low:.1f} to {100 * high:.1f}"
    )


def average_relative_gain(
    scores: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> tuple[float, int]:
    """Return the mean over tasks of ``(m - m_reference) / m_reference``, m the mean score.

    Tasks whose reference is near zero dominate it, so look at plain means too. A task that the
    reference lacks, or does not score above 0 on (as a correlation may), is left out.

    Returns:
        The gain as a fraction, NaN where no task can be compared; and how many tasks it is of.

    References:
        Ye, Lin and Ren, arXiv:2104.08835, section 5.
    """
    pairs = [
        (float(mean_score(own)), float(mean_score(reference[task])))
        for task, own in scores.items()
        if task in reference
    ]
    gains = [(ours - theirs) / theirs for ours, theirs in pairs if theirs > 0]
    return (sum(gains) / len(gains) if gains else math.nan), len(gains)


def _gain(results: Sequence[FewShotResult], reference: Sequence[FewShotResult]) -> str:
    if not reference:
        return ""
    ours, theirs = _paired(results, reference)
    scores = by_task(ours)
    gain, n_tasks = average_relative_gain(scores, by_task(theirs))
    if not n_tasks:
        return (
            "No average relative gain: the reference has no task of these with a score above 0 on "
            "the same rows, by the same metric, so there is nothing to compare with"
        )
    note, everything = "", {_sample(result) for result in results}
    if lacking := len(everything) - len({_sample(result) for result in ours}):
        note += (
            f"; {lacking} of {len(everything)} samples left out, which it lacks, or has of other "
            "rows or by another metric"
        )
    if left_out := len(scores) - n_tasks:
        note += f"; {left_out} of {len(scores)} tasks left out, no score above 0 there"
    return (
        f"Average relative gain over the reference: {100 * gain:+.1f} % (tasks with a reference "
        f"near zero dominate it; compare the means too{note})"
    )


def _sample(result: FewShotResult) -> tuple[str, int]:
    return result.task, result.sample


def _paired(
    results: Sequence[FewShotResult], reference: Sequence[FewShotResult]
) -> tuple[list[FewShotResult], list[FewShotResult]]:
    """Return the results of common samples, of the same rows and metric; seeds may differ."""
    theirs_of = {_sample(result): result for result in reference}
    both = {
        _sample(own)
        for own in results
        if (other := theirs_of.get(_sample(own)))
        and own.metric == other.metric
        and (own.rows == other.rows or None in (own.rows, other.rows))
    }
    ours, theirs = ([x for x in side if _sample(x) in both] for side in (results, reference))
    return ours, theirs


def _undefined(results: Sequence[FewShotResult]) -> str:
    counts = {
        split: sum(math.isnan(getattr(result, split)) for result in results)
        for split in scored_splits(results)
    }
    found = " and ".join(f"{count} {split}" for split, count in counts.items() if count)
    return f"Undefined scores count as 0: {found}" if found else ""


def _empty(results: Sequence[FewShotResult]) -> str:
    n_empty = sum(result.n_empty for result in results)
    if not n_empty:
        return ""
    counts = [result.n_answers for result in results if result.n_answers is not None]
    out_of = f" of {sum(counts)}" if len(counts) == len(results) else ""
    silent = silent_tasks(results)
    named = f"; all answers are empty on {some(silent)}" if silent else ""
    return f"{n_empty}{out_of} answers are empty{named}"


def _spread(scores: Sequence[float]) -> str:
    """An undefined score counts as 0, as in the mean."""
    values = [0.0 if math.isnan(score) else score for score in scores]
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"
