"""Scores against the number of examples as a figure."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comparison.tables import Point
from mttl.analysis.figures.canvas import (
    FAINT,
    FONT,
    GAP,
    HEADING,
    MARGIN,
    new_canvas,
    place,
    strip_frame,
    text_width,
)

COLOURS = (
    *("#D55E00", "#E69F00", "#000000", "#0072B2", "#56B4E9"),
    *("#009E73", "#CC79A7", "#999933"),
)
WIDTH, HEIGHT = 4.6, 2.8  # of the panel, in inches
STEP = 0.04  # between the marks of two methods with as many examples


def examples_figure(points: Sequence[Point], reference: str) -> Figure:
    """Return a line per method: means over unseen tasks, with their intervals.

    Numbers of examples stand side by side at equal distances; 0 has no logarithm.
    """
    methods = list(dict.fromkeys(point.method for point in points))
    numbers = sorted({point.examples for point in points})
    legend = text_width(methods) + 0.6
    figure = new_canvas(
        2 * MARGIN + 0.4 + WIDTH + GAP + legend,
        2 * MARGIN + 2 * HEADING + HEIGHT,
        "Mean test score over unseen tasks, per cent, by rows of each task",
    )
    axes = place(figure, MARGIN + 0.4, MARGIN + HEADING, WIDTH, HEIGHT)
    strip_frame(axes, "right", "top")
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="y", length=2)
    axes.set_xlabel("rows", fontsize=FONT)
    for row, method in enumerate(methods):
        own = [point for point in points if point.method == method]
        shift = STEP * (row - (len(methods) - 1) / 2)
        places = [numbers.index(point.examples) + shift for point in own]
        colour = COLOURS[row % len(COLOURS)]
        axes.vlines(
            places,
            [point.score.low for point in own],
            [point.score.high for point in own],
            color=colour,
            linewidth=0.8,
        )
        means = [point.score.mean for point in own]
        style = "D-" if method == reference else "o-"
        axes.plot(places, means, style, color=colour, linewidth=1, markersize=3, label=method)
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=FONT)
    return figure
