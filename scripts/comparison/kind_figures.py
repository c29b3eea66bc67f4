"""Scores of kinds of skills as figures: against parameters, and against what a sweep changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

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
from mttl.analysis.figures.task_map import place_labels

if TYPE_CHECKING:
    from comparison.kinds import KindLine

WIDTH, HEIGHT = 3.4, 2.8  # of a panel of lines, in inches
SIDE = 4.2  # of one of named points
SMALL = FONT - 1
FAR = 0.12  # inches from a point to its name


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


def kinds_figure(lines: "Sequence[KindLine]") -> Figure:
    """Return scores of kinds against what they train; bars are Student's intervals over seeds."""
    return size_figure([Dot(x.kind, x.trained_share, x.seen, x.unseen) for x in lines])


def size_figure(dots: Sequence[Dot]) -> Figure:
    """Return scores against trained parameters in per cent of the backbone: one point per kind."""
    title = "Mean test score over tasks, per cent, by trained parameters; bars: 95 % over seeds"
    figure = _canvas(title, SIDE, SIDE)
    for side, axes in _panels(figure, "trained, % of the backbone", SIDE, SIDE):
        scores: list[Mean] = [getattr(dot, side) for dot in dots]
        places, means = [dot.x for dot in dots], [score.mean for score in scores]
        axes.plot(places, means, "o", color=COLOURS[3], markersize=4)
        lows, highs = [score.low for score in scores], [score.high for score in scores]
        axes.vlines(places, lows, highs, color=COLOURS[3], linewidth=0.8, alpha=0.4)
        _make_room(axes, places)
        _name_points(axes, [dot.kind for dot in dots], np.column_stack([places, means]))
    return figure


def _make_room(axes: Axes, places: Sequence[float]) -> None:
    """Widen an axis with a single place, which rounding would leave without a width."""
    if len(set(places)) == 1:
        axes.set_autoscalex_on(False)  # it would come first, and warn of no width
        axes.set_xlim(places[0] / 10, places[0] * 10)


def _name_points(axes: Axes, names: Sequence[str], points: np.ndarray) -> None:
    """Write each name where there is room, with a line to its point where that is farther."""
    axes.autoscale_view()
    inches = SIDE * axes.transAxes.inverted().transform(axes.transData.transform(points))
    widths = [text_width([name], SMALL) for name in names]
    for name, point, box in zip(names, inches, place_labels(inches, widths, SIDE), strict=True):
        nearest = np.clip(point, box[:2], box[2:])
        if np.linalg.norm(nearest - point) > FAR:
            line = np.stack([point, nearest]) / SIDE
            axes.plot(*line.T, color=FAINT, linewidth=0.6, transform=axes.transAxes, zorder=1)
        axes.text(
            *(box[0] / SIDE, (box[1] + box[3]) / 2 / SIDE, name),
            transform=axes.transAxes,
            fontsize=SMALL,
            color=INK,
            va="center_baseline",
        )


def sweep_figure(dots: Sequence[Dot], name: str) -> Figure:
    """Return a line per kind: scores against what a sweep changes."""
    kinds = list(dict.fromkeys(dot.kind for dot in dots))
    title = f"Mean test score over tasks, per cent, by {name}"
    figure = _canvas(title, WIDTH, HEIGHT, text_width(kinds) + 0.6 + GAP)
    for side, axes in _panels(figure, name, WIDTH, HEIGHT):
        for number, kind in enumerate(kinds):
            own = [dot for dot in dots if dot.kind == kind]
            places, colour = [dot.x for dot in own], COLOURS[number % len(COLOURS)]
            scores: list[Mean] = [getattr(dot, side) for dot in own]
            lows, highs = ([getattr(score, end) for score in scores] for end in ("low", "high"))
            style = ("o-", "s--", "^:")[number // len(COLOURS) % 3]
            axes.vlines(places, lows, highs, color=colour, linewidth=0.8)
            means = [score.mean for score in scores]
            axes.plot(places, means, style, color=colour, linewidth=1, markersize=3, label=kind)
        _make_room(axes, [dot.x for dot in dots])
    figure.axes[-1].legend(
        loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=FONT
    )
    return figure


def _canvas(title: str, width: float, height: float, beside: float = 0.0) -> Figure:
    across = 2 * MARGIN + 0.4 + 2 * (width + 3 * MARGIN) + beside
    return new_canvas(across, 2 * MARGIN + 2.5 * HEADING + height, title)


def _panels(figure: Figure, label: str, width: float, height: float) -> Iterator[tuple[str, Axes]]:
    """Give a panel for seen and one for unseen tasks, each over a logarithmic axis."""
    for number, side in enumerate(("seen", "unseen")):
        left = MARGIN + 0.4 + number * (width + 3 * MARGIN)
        axes = place(figure, left, MARGIN + HEADING, width, height)
        strip_frame(axes, "right", "top")
        axes.set_title(f"{side} tasks", fontsize=FONT, color=INK)
        axes.set_xscale("log")
        # Plain numbers: text of figures is no mathematics, since a name may hold dollar signs.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.tick_params(which="both", length=2)
        axes.set_xlabel(label, fontsize=FONT)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.margins(x=0.12, y=0.1)
        yield side, axes
