"""Results of few-shot jobs in a table."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from mttl.training.few_shot import FewShotResult, average_relative_gain, interval
from mttl.training.text_to_text import mean_score


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
