"""A figure of a comparison: every method's mean on seen and on unseen tasks, and its seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.figures.canvas import FAINT, GAP, new_sheet, place, styled
from mttl.commands.comparison.tables import Mean, TaskScore, by_seed, mean_score

PANEL = 2.6  # inches
ROW = 0.21
OTHERS, REFERENCE = "#0072B2", "#D55E00"
TITLES = ("seen tasks", "unseen tasks")


class Dots(NamedTuple):
    """The scores of one method in %, on seen and on unseen tasks.

    Attributes:
        name: Name of the method.
        means: Means over tasks; NaN without a score.
        seeds: Means over tasks of every seed that has all tasks.
        differences: Differences to the reference, with their intervals.
    """

    name: str
    means: Sequence[float]
    seeds: Sequence[Sequence[float]]
    differences: Sequence[Mean]

    @classmethod
    def of(
        cls, name: str, panels: Sequence[Sequence[TaskScore]], differences: Sequence[Mean]
    ) -> "Dots":
        """Return the dots of scores, given for each panel."""
        means = [mean_score(scores) for scores in panels]
        return cls(name, means, [[*by_seed(scores).values()] for scores in panels], differences)


@styled
def comparison_figure(methods: Sequence[Dots], reference: str) -> Figure:
    """Return a row per method: small dots are seeds, the large one is the mean.

    Whiskers are the interval of the difference to the reference: a method whose whiskers do not
    reach the line of the reference differs from it. A panel without scores is left out.
    """
    panels = [
        (number, title)
        for number, title in enumerate(TITLES)
        if not all(math.isnan(method.means[number]) for method in methods)
    ]
    names = [method.name for method in methods]
    height = ROW * len(methods)
    title = "Mean test score over tasks in %; whiskers: 95 % of the difference to the line"
    figure = new_sheet(title, 0, height + 3 * GAP)
    for column, (number, title) in enumerate(panels):
        axes = place(figure, column * (PANEL + 2 * GAP), 0, PANEL, height)
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.set_title(title)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(axis="x", length=3)
        if column == 0:
            axes.set_yticks(range(len(methods)), names)
        for row, method in enumerate(methods):
            mean, seeds = method.means[number], method.seeds[number]
            if math.isnan(mean):
                continue
            own = method.name == reference
            colour = REFERENCE if own else OTHERS
            apart = method.differences[number]
            ends = mean + apart.low - apart.mean, mean + apart.high - apart.mean
            axes.hlines(row, *ends, color=colour, linewidth=1)
            axes.plot(seeds, [row] * len(seeds), "o", color=colour, markersize=2.5)
            axes.plot([mean], [row], "D" if own else "o", color=colour, markersize=6)
            if own:
                axes.axvline(mean, color=FAINT, linewidth=1, zorder=0)
    return figure
