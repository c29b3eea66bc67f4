"""Categories of tasks in a figure: coloured names, markers, and what they mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mttl.analysis.figures.canvas import FONT, ROW
from mttl.analysis.palette import UNKNOWN, Look, category_looks


def label_rows(
    axes: Axes, names: Sequence[str], categories: Sequence[str], *, marks: float
) -> None:
    """Name the rows of axes in the colours of their categories, with their markers next to them.

    Args:
        axes: Their rows are at 0, 1, 2, …
        names: Of the tasks.
        categories: One per task.
        marks: Where the markers are, in widths of the axes.
    """
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", pad=14)
    looks = category_looks(categories)
    for label, category in zip(axes.get_yticklabels(), categories, strict=True):
        label.set_color(looks[category].ink)
    points = np.array([(marks, row) for row in range(len(names))])
    mark_categories(axes, points, categories, transform=axes.get_yaxis_transform())


def mark_categories(
    axes: Axes, points: Float[np.ndarray, "N 2"], categories: Sequence[str], **options: Any
) -> None:
    """Draw the marker of each task's category at a point of the axes."""
    names = np.array(categories)
    limits = axes.axis()
    for category, look in category_looks(categories).items():
        chosen = points[names == category]
        axes.plot(*chosen.T, **_style(look), clip_on=False, zorder=3, **options)
    axes.axis(limits)


def add_legend(figure: Figure, left: float, top: float, categories: Sequence[str]) -> None:
    """List the categories, downwards from a place, if any is known."""
    if set(categories) <= {UNKNOWN}:
        return
    figure.legend(
        handles=[
            Line2D([], [], **_style(look), label=name)
            for name, look in category_looks(categories).items()
        ],
        loc="upper left",
        bbox_to_anchor=(left, top),
        # In units of the font size: rows as high as those of the tasks.
        labelspacing=ROW * 72 / FONT - 1,
        handlelength=1,
        handletextpad=0.5,
        borderaxespad=0,
        borderpad=0,
        frameon=False,
        fontsize=FONT,
    )


def _style(look: Look) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": 5,
        "markerfacecolor": look.fill,
        "markeredgecolor": look.ink,
        "markeredgewidth": 0.5,
    }
