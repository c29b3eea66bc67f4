"""The statistics of the routing over layers and over training."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.figures.canvas import (
    FAINT,
    FONT,
    HEADING,
    INK,
    MARGIN,
    ROW,
    new_canvas,
    place,
    strip_frame,
    text_width,
)
from mttl.analysis.layers import ALL, STACKS, STATISTICS, stack_means, stacks_of
from mttl.analysis.palette import COLOURS
from mttl.analysis.routing_record import Curves

PANEL = 1.9  # inches
SPACE = 0.7  # between panels with an axis each
GUTTER = 0.2  # between panels with one axis for all
# Marker, line and colour of each stack.
LOOKS = {
    ALL: ("D", "-", INK),
    "encoder": ("o", "--", COLOURS[0][1]),
    "decoder": ("^", ":", COLOURS[1][1]),
}


def statistics_by_layer(
    values: Float[np.ndarray, "G N"],
    groups: Sequence[str],
    *,
    title: str,
    names: Sequence[str] = STATISTICS,
) -> Figure:
    """Draw each statistic as a column of points, one per group of layers, with the means.

    Args:
        values: As `mttl.analysis.layers.layer_statistics` returns them.
        groups: Names of the groups.
        title: Of the figure.
        names: Of the statistics.
    """
    stacks = [stack or ALL for stack in stacks_of(groups)]
    means = stack_means(values, groups)
    labels = text_width(groups)
    body = ROW * len(groups)
    left = MARGIN + labels + 0.1
    width = left + len(names) * PANEL + (len(names) - 1) * GUTTER + MARGIN
    height = HEADING + 0.35 + body + 0.5 + MARGIN
    figure = new_canvas(width, height, title)
    bottom = height - HEADING - 0.35 - body
    for number, name in enumerate(names):
        axes = place(figure, left + number * (PANEL + GUTTER), bottom, PANEL, body)
        for stack in dict.fromkeys(stacks):
            rows = [row for row, found in enumerate(stacks) if found == stack]
            marker, line, colour = LOOKS[stack]
            axes.plot(values[rows, number], rows, marker, color=colour, markersize=4, label=stack)
            mean, ends = means[stack][number], (min(rows) - 0.5, max(rows) + 0.5)
            axes.plot([mean, mean], ends, line, color=colour, linewidth=1, zorder=1)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_title(name, fontsize=FONT, color=INK, loc="left", pad=5)
        _tidy(axes)
        axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
        axes.set_yticks(range(len(groups)), groups if number == 0 else [""] * len(groups))
        axes.tick_params(axis="y", length=0)
    _add_key(figure, left, dict.fromkeys(stacks), "lines: means")
    return figure


def statistics_over_training(curves: Curves, *, title: str) -> Figure:
    """Draw each statistic over the steps of training, of all layers and of the stacks apart.

    Args:
        curves: Steps and values by name, ``<statistic>`` or ``<stack>/<statistic>``.
        title: Of the figure.
    """
    known = [name for name in STATISTICS if name in curves]
    others = {name.rpartition("/")[2] for name in curves} - set(STATISTICS)
    panels = known + sorted(others)
    left = MARGIN + 0.45
    width = left + len(panels) * (PANEL + SPACE) - SPACE + 0.1 + MARGIN
    height = HEADING + 0.35 + PANEL + 0.65 + MARGIN
    figure = new_canvas(width, height, title)
    drawn: dict[str, None] = {}
    for number, statistic in enumerate(panels):
        bottom = height - HEADING - 0.35 - PANEL
        axes = place(figure, left + number * (PANEL + SPACE), bottom, PANEL, PANEL)
        for stack in (ALL, *STACKS):
            name = statistic if stack == ALL else f"{stack}/{statistic}"
            if name not in curves:
                continue
            marker, line, colour = LOOKS[stack]
            drawn[stack] = None
            axes.plot(*curves[name], line, marker=marker, color=colour, linewidth=1, markersize=3.5)
        axes.set_title(statistic, fontsize=FONT, color=INK, loc="left", pad=5)
        axes.set_xlabel("step", fontsize=FONT, color=INK)
        _tidy(axes)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    _add_key(figure, left, drawn, "")
    return figure


def _tidy(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(length=2, labelsize=FONT, labelcolor=INK)
    axes.ticklabel_format(useOffset=False)
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    strip_frame(axes, "top", "right")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def _add_key(figure: Figure, left: float, stacks: Mapping[str, None], note: str) -> None:
    """List the stacks in one line at the bottom."""
    across = figure.get_size_inches()[0]
    axes = place(figure, left, MARGIN - 0.1, across - left, 0.2)
    axes.set(xlim=(0, across - left), ylim=(0, 1))
    axes.set_axis_off()
    x = 0.1
    for stack in stacks:
        marker, line, colour = LOOKS[stack]
        axes.plot([x, x + 0.3], [0.5, 0.5], line, color=colour, linewidth=1)
        axes.plot(x + 0.15, 0.5, marker, color=colour, markersize=4)
        axes.text(x + 0.38, 0.5, stack, fontsize=FONT, color=INK, va="center_baseline")
        x += 0.38 + text_width([stack]) + 0.25
    axes.text(x, 0.5, note, fontsize=FONT, color=INK, va="center_baseline")
