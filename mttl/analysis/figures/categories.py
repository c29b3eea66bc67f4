"""Categories of tasks in a figure: coloured names, markers, and what they mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mttl.analysis.figures.canvas import FONT, INK, ROW, text_width
from mttl.analysis.palette import UNKNOWN, Look, category_looks


def colour_labels(axes: Axes, categories: Sequence[str]) -> None:
    """Colour the labels of the vertical axis, one per task, by category."""
    looks = category_looks(categories)
    for label, category in zip(axes.get_yticklabels(), categories, strict=True):
        label.set_color(looks[category].ink)


def mark_categories(
    axes: Axes, points: Float[np.ndarray, "N 2"], categories: Sequence[str], size: float = 4.5
) -> None:
    """Draw the marker of each task's category at a point of the axes."""
    names = np.array(categories)
    for category, look in category_looks(categories).items():
        chosen = points[names == category]
        axes.plot(chosen[:, 0], chosen[:, 1], **_style(look, size), clip_on=False, zorder=3)


def legend_width(categories: Sequence[str]) -> float:
    """Return the room in inches that `add_legend` needs; none without known categories."""
    known = set(categories) - {UNKNOWN}
    return text_width(category_looks(categories)) + 0.2 if known else 0.0


def legend_height(categories: Sequence[str]) -> float:
    """Return the height in inches that `add_legend` needs."""
    return ROW * len(set(categories)) if legend_width(categories) else 0.0


def add_legend(figure: Figure, left: float, top: float, categories: Sequence[str]) -> None:
    """List the categories, downwards from a place given in inches from the figure's lower left."""
    if not legend_width(categories):
        return
    across, up = figure.get_size_inches()
    looks = category_looks(categories)
    legend = figure.legend(
        handles=[Line2D([], [], **_style(look, 5), label=name) for name, look in looks.items()],
        loc="upper left",
        bbox_to_anchor=(left / across, top / up),
        # In units of the font size: rows as high as those of the tasks.
        labelspacing=ROW * 72 / FONT - 1,
        handlelength=1,
        handletextpad=0.5,
        borderaxespad=0,
        borderpad=0,
        frameon=False,
        fontsize=FONT,
        labelcolor=INK,
    )
    legend.set_in_layout(False)


def _style(look: Look, size: float) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": size,
        "markerfacecolor": look.fill,
        "markeredgecolor": look.ink,
        "markeredgewidth": 0.5,
    }
