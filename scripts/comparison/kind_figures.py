"""Scores of kinds of skills as figures: against parameters, and against what a sweep changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comparison.examples_figure import COLOURS
from comparison.tables import Mean
from mttl.analysis.figures.canvas import (
    FAINT,
    FONT,
    GAP,
    HEADING,
    INK,
    MARGIN,
    new_canvas,
    place,
    strip_frame,
    text_width,
)

WIDTH, HEIGHT = 3.4, 2.8  # of a panel, in inches


@dataclass(frozen=True)
class Dot:
    """What one kind scores at one place of the horizontal axis, in per cent.

    Attributes:
        kind: Its name.
        x: Where.
        seen: Mean over the training tasks.
        unseen: Mean over the unseen tasks.
    """

    kind: str
    x: float
    seen: Mean
    unseen: Mean


def size_figure(dots: Sequence[Dot]) -> Figure:
    """Return scores against trained parameters in per cent of the backbone: one point per kind."""
    title = "Mean test score over tasks, per cent, by trained parameters"
    figure = _canvas(title)
    for side, axes in _panels(figure, "trained, % of the backbone"):
        for dot in dots:
            score: Mean = getattr(dot, side)
            axes.plot([dot.x], [score.mean], "o", color=COLOURS[3], markersize=4)
            axes.vlines([dot.x], [score.low], [score.high], color=COLOURS[3], linewidth=0.8)
            axes.annotate(
                dot.kind,
                (dot.x, score.mean),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=FONT - 1,
                color=INK,
            )
        _trim(axes)
    return figure


def sweep_figure(dots: Sequence[Dot], name: str) -> Figure:
    """Return a line per kind: scores against what a sweep changes."""
    kinds = list(dict.fromkeys(dot.kind for dot in dots))
    title = f"Mean test score over tasks, per cent, by {name}"
    figure = _canvas(title, text_width(kinds) + 0.6 + GAP)
    for side, axes in _panels(figure, name):
        for number, kind in enumerate(kinds):
            own = [dot for dot in dots if dot.kind == kind]
            places, colour = [dot.x for dot in own], COLOURS[number % len(COLOURS)]
            scores: list[Mean] = [getattr(dot, side) for dot in own]
            lows, highs = ([getattr(score, end) for score in scores] for end in ("low", "high"))
            style = ("o-", "s--", "^:")[number // len(COLOURS) % 3]
            axes.vlines(places, lows, highs, color=colour, linewidth=0.8)
            means = [score.mean for score in scores]
            axes.plot(places, means, style, color=colour, linewidth=1, markersize=3, label=kind)
        _trim(axes)
    figure.axes[-1].legend(
        loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=FONT
    )
    return figure


def _canvas(title: str, beside: float = 0.0) -> Figure:
    width = 2 * MARGIN + 0.4 + 2 * (WIDTH + 3 * MARGIN) + beside
    return new_canvas(width, 2 * MARGIN + 2 * HEADING + HEIGHT, title)


def _panels(figure: Figure, label: str) -> Iterator[tuple[str, Axes]]:
    """Give a panel for seen and one for unseen tasks, each over a logarithmic axis."""
    for number, side in enumerate(("seen", "unseen")):
        left = MARGIN + 0.4 + number * (WIDTH + 3 * MARGIN)
        axes = place(figure, left, MARGIN + HEADING, WIDTH, HEIGHT)
        strip_frame(axes, "right", "top")
        axes.set_title(f"{side} tasks", fontsize=FONT, color=INK)
        axes.set_xscale("log")
        axes.set_xlabel(label, fontsize=FONT)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.margins(x=0.12, y=0.1)
        yield side, axes


def _trim(axes: Axes) -> None:
    axes.tick_params(which="both", length=2)
    axes.locator_params(axis="y", nbins=6)
