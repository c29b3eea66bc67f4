"""Figures of routing statistics by layer and over training, and of the scores of merges."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mttl.analysis.figures.canvas import FONT, INK, ROW, add_legend, new_sheet, place, styled
from mttl.analysis.palette import COLOURS, category_looks
from mttl.analysis.routing_record import Curves
from mttl.analysis.statistics import ALL, STACKS, STATISTICS, stack_means, stacks_of

PANEL = 1.9  # inches
SPACE = 0.75  # between panels with separate y axes
GUTTER = 0.2  # between panels with a common y axis
HEADING = 0.35
# Marker, line and colour of each stack.
LOOKS = {
    ALL: ("D", "-", INK),
    "encoder": ("o", "--", COLOURS[0][1]),
    "decoder": ("^", ":", COLOURS[1][1]),
}


@styled
def statistics_by_layer(
    values: Float[np.ndarray, "G N"],
    groups: Sequence[str],
    *,
    title: str,
    names: Sequence[str] = STATISTICS,
) -> Figure:
    """Draw each statistic as a panel of points, one per group of layers, with the means."""
    stacks = [stack or ALL for stack in stacks_of(groups)]
    means = stack_means(values, groups)
    height = ROW * len(groups)
    figure = new_sheet(title, 0, height + HEADING)
    for number, name in enumerate(names):
        axes = place(figure, number * (PANEL + GUTTER), 0, PANEL, height)
        for stack in dict.fromkeys(stacks):
            rows = [row for row, found in enumerate(stacks) if found == stack]
            marker, line, colour = LOOKS[stack]
            axes.plot(values[rows, number], rows, marker, color=colour, markersize=4)
            mean, ends = means[stack][number], (min(rows) - 0.5, max(rows) + 0.5)
            axes.plot([mean, mean], ends, line, color=colour, linewidth=1, zorder=1)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        _tidy(axes, xlabel=name)
        axes.set_yticks(range(len(groups)), groups if number == 0 else [""] * len(groups))
        axes.tick_params(axis="y", length=0)
        if number == 0:
            axes.set_ylabel("layers")
    _add_key(figure, dict.fromkeys(stacks), "lines: means")
    return figure


@styled
def statistics_over_training(curves: Curves, *, title: str) -> Figure:
    """Draw each statistic over training, for all layers and for each stack."""
    known = [name for name in STATISTICS if name in curves]
    others = {name.rpartition("/")[2] for name in curves} - set(STATISTICS)
    figure = new_sheet(title, 0, PANEL + HEADING)
    drawn: dict[str, None] = {}
    for number, statistic in enumerate(known + sorted(others)):
        axes = place(figure, number * (PANEL + SPACE), 0, PANEL, PANEL)
        for stack in (ALL, *STACKS):
            name = statistic if stack == ALL else f"{stack}/{statistic}"
            if name not in curves:
                continue
            marker, line, colour = LOOKS[stack]
            drawn[stack] = None
            axes.plot(*curves[name], line, marker=marker, color=colour, linewidth=1, markersize=3.5)
        _tidy(axes, xlabel="step", ylabel=statistic)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    _add_key(figure, drawn)
    return figure


@styled
def trade_offs(
    points: Sequence[Mapping[str, Any]], metrics: Sequence[str], *, title: str
) -> Figure:
    """Draw the first metric against each other one, with a curve per method over its weights.

    ``points`` have the keys ``method`` and ``weight``, and the scores by metric.
    """
    figure, methods = new_sheet(title, 0, PANEL + HEADING), [point["method"] for point in points]
    for number, other in enumerate(metrics[1:]):
        axes = place(figure, number * (PANEL + SPACE), 0, PANEL, PANEL)
        for method, look in category_looks(methods).items():
            own = [point for point in points if point["method"] == method]
            own.sort(key=lambda point: point["weight"])
            x, y = ([100 * point[metric] for point in own] for metric in (other, metrics[0]))
            axes.plot(x, y, f"{look.marker}-", color=look.ink, linewidth=1, markersize=4)
            for point, left, up in zip(own, x, y, strict=True):
                axes.annotate(
                    f"{point['weight']:g}", (left, up), (3, 3), textcoords="offset points"
                )
        _tidy(axes, xlabel=f"{other}, %", ylabel=f"{metrics[0]}, %")
        axes.yaxis.set_major_locator(MaxNLocator(5))
    add_legend(figure, (len(metrics) - 1) * (PANEL + SPACE) - SPACE / 2, PANEL, methods)
    return figure


def _tidy(axes: Axes, **labels: str) -> None:
    axes.set(**labels)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(length=2)
    axes.ticklabel_format(useOffset=False)
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_key(figure: Figure, stacks: Iterable[str], note: str = "") -> None:
    """Add a legend of the stacks in one line below the panels."""
    keys = []
    for stack in stacks:
        marker, line, colour = LOOKS[stack]
        style: dict[str, Any] = {"marker": marker, "linestyle": line, "color": colour}
        keys.append(Line2D([], [], linewidth=1, markersize=4, label=stack, **style))
    if note:
        keys.append(Line2D([], [], linestyle="none", label=note))
    where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.4), "borderaxespad": 0}
    figure.legend(handles=keys, ncols=len(keys), frameon=False, fontsize=FONT, **where)
