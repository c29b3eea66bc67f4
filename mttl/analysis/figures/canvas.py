"""Figures measured in inches: they grow with the list of tasks, so that text stays legible."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from mttl.io.files import atomic_path

FONT = 8  # points
TITLE = 10
ROW = 0.165  # inches: a line of text and the space below it
GAP = 0.12
MARGIN = 0.25
HEADING = 0.3  # room for the title
DOTS_PER_INCH = 150
INK = "#222222"
FAINT = "#bbbbbb"


def new_canvas(width: float, height: float, title: str) -> Figure:
    """Return an empty figure of a size in inches, with its title at the top left."""
    width = max(width, text_width([title], TITLE) + 2 * MARGIN)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(MARGIN / width, 1 - MARGIN / height, title, fontsize=TITLE, color=INK, va="top")
    return figure


def place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a place given in inches, without ticks."""
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.tick_params(length=0, labelsize=FONT, labelcolor=INK, pad=3)
    axes.set(xticks=[], yticks=[])
    return axes


def strip_frame(axes: Axes, *sides: str) -> None:
    """Hide sides of the frame; all of them by default."""
    for side in sides or ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)


def text_width(texts: Iterable[str], size: float = FONT) -> float:
    """Return the width in inches of the widest text."""
    # A little more than the outlines: on screen they are fitted to pixels.
    return max((1.03 * _points(text, size) / 72 for text in texts), default=0.0)


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as PNG and as SVG, whole or not at all.

    Text stays text in the SVG, so that it can be searched and selected, and the same figure gives
    the same file.

    Args:
        figure: What to write.
        path: Where, without suffix.

    Returns:
        The two files.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # type: ignore[attr-defined]  # a name may hold dollar signs
    png, svg = (Path(f"{path}.{suffix}") for suffix in ("png", "svg"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mttl"}):
        with atomic_path(png) as temporary:
            figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH)
        with atomic_path(svg) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
    return [png, svg]


@cache
def _points(text: str, size: float) -> float:
    font = FontProperties(size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
