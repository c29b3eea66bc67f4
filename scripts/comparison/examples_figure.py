"""Scores against the number of examples as a figure."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comparison.tables import Point
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
)

COLOURS = (
    *("#D55E00", "#E69F00", "#000000", "#0072B2", "#56B4E9"),
    *("#009E73", "#CC79A7", "#999933"),
)
WIDTH, HEIGHT = 3.4, 2.8  # of a panel, in inches
STEP = 0.06  # between the marks of two curves with as many examples


def examples_figure(points: Sequence[Point], reference: str) -> Figure:
    """Return a line per method: means over unseen tasks, with their intervals.

    Other ways to adapt the reference have a panel of their own, in which it stands again. Numbers
    of examples stand side by side at equal distances; 0 has no logarithm.
    """
    ways = f"{reference}: "
    panels = {
        "methods": [point for point in points if not point.method.startswith(ways)],
        f"ways to adapt {reference}": [
            point for point in points if point.method == reference or point.method.startswith(ways)
        ],
    }
    panels = {name: own for name, own in panels.items() if len({one.method for one in own}) > 1}
    panels = panels or {"methods": list(points)}
    figure = new_canvas(
        2 * MARGIN + len(panels) * (0.4 + WIDTH) + (len(panels) - 1) * GAP,
        2 * MARGIN + 3 * HEADING + HEIGHT,
        "Mean test score over unseen tasks, per cent, by rows of each task",
    )
    # One task, seed and sample have no interval.
    ends = [end for one in points for end in (one.score.mean, one.score.high)]
    top = max([1.0, *(1.03 * end for end in ends if not math.isnan(end))])
    numbers = sorted({point.examples for point in points})
    for column, (name, own) in enumerate(panels.items()):
        left = MARGIN + 0.4 + column * (0.4 + WIDTH + GAP)
        axes = place(figure, left, MARGIN + HEADING, WIDTH, HEIGHT)
        axes.set_title(name, fontsize=FONT, color=INK, loc="left")
        axes.set_ylim(0, top)
        _draw(axes, own, numbers, reference)
    return figure


def _draw(axes: Axes, points: Sequence[Point], numbers: Sequence[int], reference: str) -> None:
    strip_frame(axes, "right", "top")
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="y", length=2)
    axes.set_xlabel("rows", fontsize=FONT)
    methods = list(dict.fromkeys(point.method for point in points))
    for row, method in enumerate(methods):
        own = [point for point in points if point.method == method]
        shift = STEP * (row - (len(methods) - 1) / 2)
        places = [numbers.index(point.examples) + shift for point in own]
        lows, highs = ([getattr(one.score, end) for one in own] for end in ("low", "high"))
        colour = COLOURS[row % len(COLOURS)]
        axes.vlines(places, lows, highs, color=colour, linewidth=0.8, alpha=0.4)
        style = "D-" if method == reference else "o-"
        means = [point.score.mean for point in own]
        name = method.removeprefix(f"{reference}: ")
        axes.plot(places, means, style, color=colour, linewidth=1, markersize=3, label=name)
    axes.legend(loc="upper left", frameon=False, fontsize=FONT)
