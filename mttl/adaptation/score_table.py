"""Tables of few-shot results."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from mttl.adaptation.plan import FewShotResult
from mttl.analysis.bootstrap import mean_and_interval
from mttl.io.errors import some
from mttl.runtime.text_table import TextTable
from mttl.training.predictions import Result
from mttl.training.report import HEADINGS, MEANING
from mttl.training.text_to_text import mean_score


def by_task(results: Iterable[FewShotResult], split: str = "test") -> dict[str, list[float]]:
    """Return the scores by task."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(result.task, []).append(getattr(result, split))
    return scores


def silent_tasks(results: Sequence[FewShotResult]) -> list[str]:
    """Return the tasks with only empty answers."""
    speaking = {result.task for result in results if not 0 < result.n_answers <= result.n_empty}
    return list(dict.fromkeys(result.task for result in results if result.task not in speaking))


def few_shot_table(
    results: Sequence[FewShotResult],
    title: str = "Adaptation (%)",
    reference: Sequence[FewShotResult] = (),
    baselines: Mapping[str, Sequence[Result]] | None = None,
) -> Table:
    """Return a table of mean ± standard deviation per task in %, and the mean over tasks.

    With ``reference``, the caption has the average relative gain over it. ``baselines`` are test
    scores from `mttl.training.report.baseline_results`.
    """
    beside = baselines or {}
    table = TextTable(title, digits=1).words("task", "metric")
    table.numbers("dev", "test", *(HEADINGS[name] for name in beside), "jobs")
    if not results:
        table.caption = "No job has finished yet"
        return table
    # Without training, development rows are not scored.
    untrained = all(math.isnan(result.dev) and not result.n_trained for result in results)
    splits, blank = (["test"], [""]) if untrained else (["dev", "test"], [])
    metrics = {result.task: result.metric for result in results}
    scores = [by_task(results, split) for split in splits]
    for task, own in scores[-1].items():
        cells = [_spread(column[task]) for column in scores]
        cells += [100 * row.score for rows in beside.values() for row in rows if row.task == task]
        table.add(task, metrics[task], *blank, *cells, len(own))
    table.add_section()
    means = [100 * float(mean_score(list(map(mean_score, column.values())))) for column in scores]
    means += [100 * rows[-1].score for rows in beside.values()]
    table.add("mean", "", *blank, *means, len(results))
    missing = {split: sum(math.isnan(getattr(x, split)) for x in results) for split in splits}
    undefined = " and ".join(f"{count} {split}" for split, count in missing.items() if count)
    parts = [MEANING] if beside else []
    parts += [_interval(results), _gain(results, reference) if reference else ""]
    parts += [undefined and f"Undefined scores count as 0: {undefined}"]
    if n_empty := sum(result.n_empty for result in results):
        n_answers, silent = sum(result.n_answers for result in results), silent_tasks(results)
        named = f"; all answers are empty on {some(silent)}" if silent else ""
        parts.append(f"{n_empty} of {n_answers} answers are empty{named}")
    table.caption = ". ".join(filter(None, parts))
    return table


def _spread(scores: Sequence[float]) -> str:
    """Return mean ± deviation; undefined scores count as 0."""
    values = [0.0 if math.isnan(score) else 100 * score for score in scores]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _interval(results: Sequence[FewShotResult]) -> str:
    samples = Counter(task for task, _ in {(result.task, result.sample) for result in results})
    if few := sorted(task for task, n in samples.items() if n < 2):
        return (
            "No confidence interval of the mean: it needs two samples of each task (seeds of a "
            f"sample are not independent), but there are fewer of {some(few)}"
        )
    # Each task is a separate fold, so that its samples are drawn independently.
    folds = {task: fold for fold, task in enumerate(sorted(samples))}
    scores = {
        (x.task, folds[x.task], x.sample, x.seed): 0.0 if math.isnan(x.test) else x.test
        for x in results
    }
    _, low, high = mean_and_interval(scores, draw_tasks=False)
    if math.isnan(low):
        return "No confidence interval: all samples have equal scores"
    return (
        "95 % bootstrap interval of the mean test score (over samples, and seeds within them): "
        f"{100 * low:.1f} to {100 * high:.1f}"
    )


def average_relative_gain(
    scores: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> tuple[float, int]:
    """Return the mean over tasks of ``(m - m_reference) / m_reference``, where m is a mean score.

    Tasks whose reference score is near zero dominate it; compare plain means as well. Tasks without
    a positive reference score are omitted. The gain is a fraction, NaN if no task can be compared;
    the second number counts the compared tasks.

    References:
        Ye, Lin and Ren, arXiv:2104.08835, section 5.
    """
    pairs = [
        (mean_score(own), mean_score(reference[task]))
        for task, own in scores.items()
        if task in reference
    ]
    gains = [(ours - theirs) / theirs for ours, theirs in pairs if theirs > 0]
    return (sum(gains) / len(gains) if gains else math.nan), len(gains)


def _gain(results: Sequence[FewShotResult], reference: Sequence[FewShotResult]) -> str:
    """Return a sentence on the gain over samples with the same rows and metric."""

    def rows(result: FewShotResult) -> tuple[str, int, str, str]:
        return result.task, result.sample, result.metric, result.rows

    common = set(map(rows, results)) & set(map(rows, reference))
    scores, theirs = (
        by_task(x for x in side if rows(x) in common) for side in (results, reference)
    )
    gain, n_tasks = average_relative_gain(scores, theirs)
    if not n_tasks:
        return (
            "No average relative gain: the reference has no positive score on the same rows with "
            "the same metric"
        )
    note, n_samples = "", len(set(map(rows, results)))
    if lacking := n_samples - len(common):
        note += (
            f"; {lacking} of {n_samples} samples omitted, because the reference lacks them or has "
            "other rows or metrics"
        )
    if left_out := len(scores) - n_tasks:
        note += f"; {left_out} of {len(scores)} tasks omitted, reference score not above 0"
    return (
        f"Average relative gain over the reference: {100 * gain:+.1f} % (dominated by tasks with a "
        f"reference near zero; compare the means as well{note})"
    )
