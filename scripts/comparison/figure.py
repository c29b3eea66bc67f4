"""The comparison at a glance: every method's mean on seen and on unseen tasks, and its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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

PANEL = 2.6  # inches
ROW = 0.21
OTHERS, REFERENCE = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Dots:
    """The scores of one method, in per cent.

    Attributes:
        name: Its name.
        scores: For each panel, a mean over tasks per seed; none where it has no score.
        differences: To the reference, likewise, with their intervals.
    """

    name: str
    scores: Sequence[Sequence[float]]
    differences: Sequence[Mean]


def comparison_figure(
    methods: Sequence[Dots],
    reference: str,
    titles: Sequence[str] = ("seen tasks", "unseen tasks"),
) -> Figure:
    """Return a row per method: small dots are seeds, the large one is their mean.

    Whiskers are the interval of the difference to the reference, as the table has it: one that does
    not reach the line of the reference is a difference. A panel without scores is left out.
    """
    panels = [
        (number, title)
        for number, title in enumerate(titles)
        if any(method.scores[number] for method in methods)
    ]
    names = [method.name for method in methods]
    label = text_width(names) + GAP
    height = ROW * len(methods)
    figure = new_canvas(
        MARGIN + label + len(panels) * (PANEL + MARGIN),
        2 * MARGIN + 2 * HEADING + height,
        "Mean test score over tasks, per cent; whiskers: 95 % of the difference to the line",
    )
    for column, (number, title) in enumerate(panels):
        left = MARGIN + label + column * (PANEL + MARGIN)
        axes = place(figure, left, MARGIN + HEADING / 2, PANEL, height)
        strip_frame(axes, "left", "right", "top")
        axes.set_title(title, fontsize=FONT, color=INK)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(axis="x", length=3)
        if column == 0:
            axes.set_yticks(range(len(methods)), names)
        for row, method in enumerate(methods):
            scores = method.scores[number]
            if not scores:
                continue
            colour = REFERENCE if method.name == reference else OTHERS
            mean = sum(scores) / len(scores)
            apart = method.differences[number]
            axes.hlines(
                *(row, mean + apart.low - apart.mean, mean + apart.high - apart.mean),
                color=colour,
                linewidth=1,
            )
            axes.plot(scores, [row] * len(scores), "o", color=colour, markersize=2.5)
            marker = "D" if method.name == reference else "o"
            axes.plot([mean], [row], marker, color=colour, markersize=6)
            if method.name == reference:
                axes.axvline(mean, color=FAINT, linewidth=1, zorder=0)
    return figure
