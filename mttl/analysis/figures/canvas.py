"""Figures whose coordinates are inches and whose size fits their content.

Each category of tasks has a colour and a marker, which a legend lists.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from mttl.analysis.palette import UNKNOWN, Look, category_looks
from mttl.io.files import atomic_path

FONT = 8  # points
TITLE = 10
ROW = 0.165  # inches: a line of text and the space below it
GAP = 0.12
DOTS_PER_INCH = 150
INK = "#222222"
FAINT = "#bbbbbb"
# A decorator for functions that draw.
styled = matplotlib.rc_context(
    {
        **{"font.size": FONT, "axes.titlesize": FONT, "axes.titlepad": 5},
        **{"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT},
    }
)


def new_sheet(title: str, left: float, bottom: float) -> Figure:
    """Return a figure with a title at a position; `save_figure` fits its size to the content."""
    figure = Figure(figsize=(1, 1), facecolor="white")
    figure.text(left, bottom, title, fontsize=TITLE)
    return figure


def place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes without ticks at a position, in inches."""
    axes = figure.add_axes((left, bottom, width, height))
    axes.tick_params(length=0, labelsize=FONT, labelcolor=INK, pad=3)
    axes.set(xticks=[], yticks=[])
    return axes


def text_width(texts: Iterable[str]) -> float:
    """Return the width in inches of the widest text."""
    # 3 % wider than the outlines, which a screen fits to pixels.
    return max((1.03 * _points(text) / 72 for text in texts), default=0.0)


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as PNG, SVG and PDF, and return the files: the path with each suffix.

    Text stays text in SVG and PDF, and equal figures give equal files.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # type: ignore[attr-defined]  # a name may hold dollar signs
    fonts: Any = {"svg.fonttype": "none", "svg.hashsalt": "mttl", "pdf.fonttype": 42}
    formats: dict[str, Any] = {
        "png": {"dpi": DOTS_PER_INCH},
        "svg": {"metadata": {"Date": None}},
        "pdf": {"metadata": {"CreationDate": None}},
    }
    # "tight" would measure the figure once per format.
    size = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer()).padded(2 * GAP)
    with matplotlib.rc_context(fonts):
        for suffix, settings in formats.items():
            with atomic_path(Path(f"{path}.{suffix}")) as temporary:
                figure.savefig(temporary, format=suffix, bbox_inches=size, **settings)
    return [Path(f"{path}.{suffix}") for suffix in formats]


@cache
def _points(text: str) -> float:
    font = FontProperties(size=FONT)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]


def label_rows(
    axes: Axes, names: Sequence[str], categories: Sequence[str], *, marks: float
) -> None:
    """Label the rows of axes with tasks, in the colours of their categories.

    A marker stands next to each label, at ``marks`` widths of the axes from their left side.
    """
    axes.set_yticks(range(len(names)), names)
    axes.set_ylabel("task")
    axes.tick_params(axis="y", pad=14)
    looks = category_looks(categories)
    for label, category in zip(axes.get_yticklabels(), categories, strict=True):
        label.set_color(looks[category].ink)
    points = np.array([(marks, row) for row in range(len(names))])
    mark_categories(axes, points, categories, transform=axes.get_yaxis_transform())


def mark_categories(
    axes: Axes, points: Float[np.ndarray, "N 2"], categories: Sequence[str], **options: Any
) -> None:
    """Draw each task's marker, that of its category, at its point."""
    names = np.array(categories)
    limits = axes.axis()
    for category, look in category_looks(categories).items():
        axes.plot(*points[names == category].T, **_style(look), clip_on=False, zorder=3, **options)
    axes.axis(limits)


def add_legend(figure: Figure, left: float, top: float, categories: Sequence[str]) -> None:
    """Add a legend of the categories at a position, unless all are unknown."""
    if set(categories) <= {UNKNOWN}:
        return
    looks = category_looks(categories).items()
    figure.legend(
        handles=[Line2D([], [], **_style(look), label=name) for name, look in looks],
        loc="upper left",
        bbox_to_anchor=(left, top),
        frameon=False,
        fontsize=FONT,
        labelspacing=ROW * 72 / FONT - 1,  # of the font size: rows as high as those of the tasks
        handlelength=1,
        handletextpad=0.5,
        borderaxespad=0,
        borderpad=0,
    )


def _style(look: Look) -> dict[str, Any]:
    edge = {"markeredgecolor": look.ink, "markeredgewidth": 0.5, "markerfacecolor": look.fill}
    return {"linestyle": "none", "marker": look.marker, "markersize": 5, **edge}
