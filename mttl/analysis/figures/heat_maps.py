"""Matrices of tasks as heat maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from mttl.analysis.figures.canvas import (
    FONT,
    GAP,
    HEADING,
    INK,
    MARGIN,
    ROW,
    new_canvas,
    place,
    text_width,
)
from mttl.analysis.figures.categories import (
    add_legend,
    colour_labels,
    legend_height,
    legend_width,
    mark_categories,
)

COLOUR_MAP = "cividis"
AROUND_ZERO = "RdBu_r"  # blue below zero, white at it, red above
SCALE = 1.6  # inches: a colour bar with its name, and the space below
PANEL = (1.25, 2.6)  # smallest and largest width of one of several panels, in inches
STRIP = 0.16  # the column of category markers
BAR = 0.14
FOOT = 0.34  # below the map: numbers of skills and what they are
MISSING = "#ffffff"


def heat_maps(
    panels: Float[np.ndarray, "P T K"],
    names: Sequence[str],
    tasks: Sequence[str],
    *,
    order: Int[np.ndarray, "T"],
    categories: Sequence[str],
    title: str,
    quantity: str = "mixing weight",
    changes: str = "",
    less_is_worse: bool = False,
    skills: Sequence[str] = (),
) -> Figure:
    """Draw matrices of tasks by skills side by side, in one order of tasks and one scale.

    Args:
        panels: The matrices.
        names: A heading for each; long ones break at dots and slashes.
        tasks: Names of the tasks.
        order: The tasks from top to bottom.
        categories: One per task.
        title: Of the figure.
        quantity: What the colours mean.
        changes: What those of the last panel mean, if it has a scale of its own around zero.
        less_is_worse: What is below zero there is red, rather than what is above it.
        skills: What they are called; by default they have numbers.
    """
    n_panels, n_tasks, n_skills = panels.shape
    panel = max(n_skills * ROW, PANEL[0])
    if n_panels > 1:
        panel = min(panel, PANEL[1])
    headings = [_broken(name, int(panel / 0.066)) for name in names]
    n_lines = max(heading.count("\n") + 1 for heading in headings)
    labels = text_width(tasks)
    map_height = n_tasks * ROW
    left = MARGIN + labels + STRIP + 0.05
    right = left + n_panels * panel + (n_panels - 1) * GAP
    n_scales = 2 if changes else 1
    body = max(map_height, legend_height(categories) + n_scales * SCALE)
    headroom = HEADING + MARGIN + (n_lines + 1) * ROW
    foot = FOOT + text_width(skills) if skills else FOOT
    height = headroom + body + foot + MARGIN
    width = right + 0.3 + max(1.0, legend_width(categories)) + MARGIN
    figure = new_canvas(width, height, title)

    top = height - headroom
    bottom = top - map_height
    plain = panels[:-1] if changes else panels
    low, high = float(plain.min()), float(plain.max())
    chosen = _ordered(categories, order)
    images = []
    for number, (matrix, heading) in enumerate(zip(panels, headings, strict=True)):
        of_changes = changes and number == n_panels - 1
        axes = place(figure, left + number * (panel + GAP), bottom, panel, map_height)
        colours = {"cmap": COLOUR_MAP, "vmin": low, "vmax": high if high > low else low + 1}
        image = axes.imshow(
            matrix[order],
            aspect="auto",
            interpolation="nearest",
            **(_around_zero(matrix, less_is_worse) if of_changes else colours),
        )
        images.append(image)
        axes.set_title(heading, fontsize=FONT, color=INK, pad=4 + ROW * 72)
        every = max(1, int(np.ceil(n_skills * text_width([str(n_skills)]) * 1.6 / panel)))
        if skills:
            axes.set_xticks(range(n_skills), skills, rotation=90)
        else:
            axes.set_xticks(range(0, n_skills, every))
            axes.tick_params(labeltop=True)
        if number == 0:
            _label_tasks(axes, _ordered(tasks, order), chosen)
            _mark_rows(figure, left - STRIP, bottom, map_height, chosen)
    figure.text(
        (left + right) / 2 / width,
        (bottom - foot) / height,
        "member" if skills else "skill",
        fontsize=FONT,
        color=INK,
        ha="center",
        va="bottom",
    )
    _add_scale(figure, images[0], right + 0.3, top, quantity)
    if changes:
        _add_scale(figure, images[-1], right + 0.3, top - SCALE, changes)
    add_legend(figure, right + 0.3, top - n_scales * SCALE, chosen)
    return figure


def similarity_matrix(
    similarity: Float[np.ndarray, "T T"],
    tasks: Sequence[str],
    *,
    order: Int[np.ndarray, "T"],
    categories: Sequence[str],
    title: str,
    quantity: str = "correlation",
) -> Figure:
    """Draw the similarity of all tasks with all; the diagonal, always 1, is left out.

    Args:
        similarity: Of all tasks with all.
        tasks: Names of the tasks.
        order: The tasks from top to bottom and from left to right.
        categories: One per task.
        title: Of the figure.
        quantity: What the colours mean.
    """
    size = len(tasks) * ROW
    labels = text_width(tasks)
    left = MARGIN + labels + STRIP + 0.05
    body = max(size, legend_height(categories) + SCALE)
    height = HEADING + MARGIN + body + labels + 0.15 + MARGIN
    width = left + size + 0.3 + max(1.0, legend_width(categories)) + MARGIN
    figure = new_canvas(width, height, title)
    top = height - HEADING - MARGIN
    axes = place(figure, left, top - size, size, size)
    shown = np.ma.array(similarity[np.ix_(order, order)], mask=np.eye(len(tasks), dtype=bool))
    image = axes.imshow(shown, interpolation="nearest", aspect="auto", **_around_zero(shown))
    axes.set_facecolor(MISSING)
    names = _ordered(tasks, order)
    chosen = _ordered(categories, order)
    axes.set_xticks(range(len(tasks)), names, rotation=90)
    _label_tasks(axes, names, chosen)
    for label, coloured in zip(axes.get_xticklabels(), axes.get_yticklabels(), strict=True):
        label.set_color(coloured.get_color())
    _mark_rows(figure, left - STRIP, top - size, size, chosen)
    _add_scale(figure, image, left + size + 0.3, top, quantity)
    add_legend(figure, left + size + 0.3, top - SCALE, chosen)
    return figure


def _around_zero(values: np.ndarray, reverse: bool = False) -> dict[str, Any]:
    """Return a scale whose middle is zero, so that signs can be seen."""
    largest = float(np.abs(values).max()) or 1.0
    colours = AROUND_ZERO.removesuffix("_r") if reverse else AROUND_ZERO
    return {"cmap": colours, "vmin": -largest, "vmax": largest}


def _ordered(texts: Sequence[str], order: Int[np.ndarray, "T"]) -> list[str]:
    return [texts[int(task)] for task in order]


def _label_tasks(axes: Axes, names: Sequence[str], categories: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", pad=3 + STRIP * 72)
    colour_labels(axes, categories)


def _mark_rows(
    figure: Figure, left: float, bottom: float, height: float, categories: Sequence[str]
) -> None:
    """Draw the column of category markers between the names and the map."""
    n_rows = len(categories)
    axes = place(figure, left, bottom, STRIP, height)
    axes.set(xlim=(0, 1), ylim=(n_rows - 0.5, -0.5))
    axes.set_axis_off()
    mark_categories(axes, np.array([(0.45, row) for row in range(n_rows)]), categories)


def _add_scale(figure: Figure, image: AxesImage, left: float, top: float, quantity: str) -> None:
    """Draw the colour bar, one inch high, below its name."""
    axes = place(figure, left, top - 1.2, BAR, 1.0)
    bar = figure.colorbar(image, cax=axes)
    bar.outline.set_visible(False)  # type: ignore[operator]
    axes.tick_params(length=2, labelsize=FONT, labelcolor=INK)
    axes.set_title(quantity, fontsize=FONT, color=INK, loc="left", pad=5)


def _broken(name: str, n_characters: int) -> str:
    """Break a name at dots and slashes into lines of at most so many characters, if it can."""
    lines = [""]
    for part in name.replace("/", "/\0").replace(".", ".\0").split("\0"):
        if lines[-1] and len(lines[-1] + part) > n_characters:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
