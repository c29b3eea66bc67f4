"""The trade-off between the planted behaviour and the tasks, as a table and as a figure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from mttl.analysis.figures.canvas import FONT, HEADING, INK, MARGIN, new_canvas, place, strip_frame
from removal.planted import Score

WIDTH, HEIGHT = 4.6, 3.4  # inches
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#009E73")
MODELS = ("base", "expert", "anti-expert")


@dataclass(frozen=True)
class Point:
    """One model that was scored.

    Attributes:
        seed: Of training.
        name: Of the method, or what was trained.
        weight: λ; none for what was trained.
        split: Of the rows.
        score: How it did.
    """

    seed: int
    name: str
    weight: float | None
    split: str
    score: Score


def table(points: Sequence[Point]) -> str:
    """Return test scores in per cent: mean and, where there are several seeds, their range.

    Args:
        points: Of all seeds; a method's test score is at the λ that its development rows chose.
    """
    tested = [point for point in points if point.split == "test"]
    lines = [
        "| | λ | copied | planted tasks | other tasks | mean of both |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(point.name for point in tested):
        own = [point for point in tested if point.name == name]
        weights = sorted({point.weight for point in own if point.weight is not None})
        cells = [
            _cell([100 * value(point.score) for point in own])
            for value in (
                lambda score: score.copied,
                lambda score: score.exact,
                lambda score: score.others,
                lambda score: score.mean,
            )
        ]
        chosen = ", ".join(f"{weight:g}" for weight in weights)
        lines.append(f"| {name} | {chosen} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(points: Sequence[Point]) -> Figure:
    """Return the sweep: a curve per method over its λ, means over seeds, on development rows."""
    swept = [point for point in points if point.split == "dev"]
    sheet = new_canvas(
        WIDTH + 4 * MARGIN + 2.4,
        HEIGHT + 3 * MARGIN + HEADING,
        "Removing a planted behaviour: each curve begins at the base (square) and follows λ",
    )
    axes = place(sheet, 3 * MARGIN, 2.5 * MARGIN, WIDTH, HEIGHT - MARGIN)
    strip_frame(axes, "right", "top")
    axes.set_xlabel("answers that copy the input, per cent", fontsize=FONT, color=INK)
    axes.set_ylabel("true answers, mean of both halves, per cent", fontsize=FONT, color=INK)
    axes.set_xticks(range(0, 101, 20))
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylim(0, 100)
    means = {
        (name, weight): _mean_of(swept, name, weight)
        for name, weight in dict.fromkeys((point.name, point.weight) for point in swept)
    }
    names = [name for name in dict.fromkeys(point.name for point in swept) if name not in MODELS]
    for name, colour in zip(names, COLOURS, strict=False):
        curve = [means["base", None]]
        curve += [place for (other, _), place in means.items() if other == name]
        axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=name, ms=3, lw=1)
    for name, marker in zip(MODELS, ("s", "^", "v"), strict=True):
        axes.plot(*means[name, None], marker, color=INK, label=name, ms=6, ls="")
    axes.legend(fontsize=FONT, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return sheet


def _mean_of(points: Sequence[Point], name: str, weight: float | None) -> tuple[float, float]:
    own = [point.score for point in points if (point.name, point.weight) == (name, weight)]
    return (
        100 * statistics.mean(score.copied for score in own),
        100 * statistics.mean(score.mean for score in own),
    )


def _cell(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f} to {max(values):.1f})"
