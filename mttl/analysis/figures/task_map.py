"""Tasks as labelled points in the plane."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mttl.analysis.figures.canvas import (
    FAINT,
    GAP,
    INK,
    ROW,
    add_legend,
    mark_categories,
    new_sheet,
    place,
    styled,
    text_width,
)
from mttl.analysis.palette import category_looks

AREA_PER_LABEL = 6.0  # square inches of paper per square inch of text
SMALLEST = 5.0
DOT = 0.09  # inches
TEXT = 0.125  # height of a label in inches
SPACE = 0.06  # after a label

Box = tuple[float, float, float, float]  # left, bottom, right, top


@styled
def task_map(
    points: Float[np.ndarray, "T 2"],
    tasks: Sequence[str],
    *,
    categories: Sequence[str],
    title: str,
    axis_names: tuple[str, str] = ("", ""),
    trails: Sequence[Float[np.ndarray, "S 2"]] = (),
) -> Figure:
    """Draw tasks as points; labels move aside, with a thin line, where they would overlap.

    Trails are ways that tasks came; they begin with a ring.
    """
    widths = [text_width([task]) + SPACE for task in tasks]
    size = max(SMALLEST, float(np.sqrt(AREA_PER_LABEL * sum(widths) * ROW)))
    figure = new_sheet(title, 0, size + GAP)
    axes = place(figure, 0, 0, size, size)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1], xlim=(0, size), ylim=(0, size))

    # Coordinates in inches from here on: labels are placed by their size on paper.
    shown = np.concatenate([points, *trails])
    spread = np.ptp(shown, axis=0)
    shown = 0.4 + (shown - shown.min(0)) / np.where(spread > 0, spread, 1) * (size - 0.8)
    inches = shown[: len(points)]
    ways = np.split(shown[len(points) :], np.cumsum([len(trail) for trail in trails])[:-1])
    for way in ways if trails else ():
        axes.plot(*way.T, ".-", color=INK, linewidth=0.9, markersize=3, zorder=2)
        axes.plot(*way[0], "o", color=INK, markerfacecolor="white", markersize=6, zorder=2)
    looks = category_looks(categories)
    mark_categories(axes, inches, categories)
    boxes = place_labels(inches, widths, size)
    for task, category, point, box in zip(tasks, categories, inches, boxes, strict=True):
        nearest = np.clip(point, box[:2], box[2:])
        if np.linalg.norm(nearest - point) > 1.8 * DOT:
            axes.plot(*np.stack([point, nearest]).T, color=FAINT, linewidth=0.6, zorder=1)
        middle = (box[1] + box[3]) / 2
        axes.text(box[0], middle, task, color=looks[category].ink, va="center_baseline")
    add_legend(figure, size + 0.3, size, categories)
    return figure


def place_labels(
    points: Float[np.ndarray, "T 2"], widths: Sequence[float], size: float
) -> list[Box]:
    """Choose a box for the label of every point: the nearest that is free.

    Returns:
        Boxes that overlap neither each other nor any point; a label for which the whole square has
        no room stays beside its point.
    """
    taken = [(x - DOT / 2, y - DOT / 2, x + DOT / 2, y + DOT / 2) for x, y in points]
    boxes: list[Box] = []
    for (x, y), width in zip(points, widths, strict=True):
        free = (box for box in _around(x, y, width, size) if not _overlaps(box, taken))
        box = next(free, None) or next(_around(x, y, width, size))
        boxes.append(box)
        taken.append(box)
    return boxes


def _around(x: float, y: float, width: float, size: float) -> Iterator[Box]:
    """Boxes around a point, on wider and wider rings; the first is to its right."""
    for distance in np.arange(0.06, size, 0.07):
        for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False):
            # The side of the box that faces the point touches the ring.
            across, up = np.cos(angle), np.sin(angle)
            centre_x = x + distance * across + width / 2 * np.clip(2 * across, -1, 1)
            centre_y = y + distance * up + TEXT / 2 * np.clip(2 * up, -1, 1)
            left, right = float(centre_x - width / 2), float(centre_x + width / 2)
            bottom, top = float(centre_y - TEXT / 2), float(centre_y + TEXT / 2)
            if left >= 0 and bottom >= 0 and right <= size and top <= size:
                yield left, bottom, right, top


def _overlaps(box: Box, others: Sequence[Box]) -> bool:
    left, bottom, right, top = np.array(others).T
    return bool(((left < box[2]) & (right > box[0]) & (bottom < box[3]) & (top > box[1])).any())
