"""Figure of a comparison: mean scores of each method on seen and unseen tasks."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.figures.canvas import FAINT, GAP, new_sheet, place, styled
from mttl.commands.comparison.tables import TableRow

PANEL = 2.6  # inches
ROW = 0.21
OTHERS, REFERENCE = "#0072B2", "#D55E00"
SIDES = ("seen", "unseen")


@styled
def comparison_figure(
    lines: Sequence[TableRow], seeds: Mapping[str, Sequence[Sequence[float]]], reference: str
) -> Figure:
    """Return a figure with one row per method: small dots are seeds, the large one is the mean.

    Whiskers show the interval of the difference to the reference: a method whose whiskers do not
    reach the reference line differs from it. A panel without scores is omitted. ``seeds`` has, for
    each of `SIDES`, the means over tasks by method and seed.
    """
    panels = [side for side in SIDES if not all(math.isnan(getattr(row, side)) for row in lines)]
    height = ROW * len(lines)
    title = "Scores of methods; whiskers: 95 % interval of the difference to the reference's line"
    figure = new_sheet(title, 0, height + 3 * GAP)
    for column, side in enumerate(panels):
        axes = place(figure, column * (PANEL + 2 * GAP), 0, PANEL, height)
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.set(title=f"{side} tasks", xlabel="mean test score over tasks, %")
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(axis="x", length=3)
        if column == 0:
            axes.set_yticks(range(len(lines)), [line.method for line in lines])
            axes.set_ylabel("method")
        for row, (line, dots) in enumerate(zip(lines, seeds[side], strict=True)):
            mean, apart = getattr(line, side), getattr(line, f"{side}_difference")
            if math.isnan(mean):
                continue
            own = line.method == reference
            colour = REFERENCE if own else OTHERS
            ends = mean + apart.low - apart.mean, mean + apart.high - apart.mean
            axes.hlines(row, *ends, color=colour, linewidth=1)
            axes.plot(dots, [row] * len(dots), "o", color=colour, markersize=2.5)
            axes.plot([mean], [row], "D" if own else "o", color=colour, markersize=6)
            if own:
                axes.axvline(mean, color=FAINT, linewidth=1, zorder=0)
        low, high = axes.get_xlim()
        if high - low < 1:  # equal scores
            axes.set_xlim(low - 1, high + 1)
    return figure
