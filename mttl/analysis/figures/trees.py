"""The tree of tasks, upright and round."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.clustering import tree_joints
from mttl.analysis.figures.canvas import (
    FONT,
    GAP,
    HEADING,
    INK,
    MARGIN,
    ROW,
    new_canvas,
    place,
    strip_frame,
    text_width,
)
from mttl.analysis.figures.categories import (
    add_legend,
    colour_labels,
    legend_height,
    legend_width,
    mark_categories,
)
from mttl.analysis.palette import category_looks

TREE_WIDTH = 4.0  # inches
SMALLEST_RADIUS = 1.6
LINE = {"color": "#555555", "linewidth": 0.8, "solid_capstyle": "round"}
ARC_POINTS = 40


def dendrogram(
    tree: Float[np.ndarray, "T-1 4"],
    tasks: Sequence[str],
    *,
    categories: Sequence[str],
    title: str,
    distance: str = "1 − correlation",
) -> Figure:
    """Draw the tree with its leaves, the tasks, on the right.

    Args:
        tree: As `mttl.analysis.clustering.task_tree` returns it.
        tasks: Names of the tasks.
        categories: One per task.
        title: Of the figure.
        distance: What the horizontal axis measures.
    """
    leaves, joints = tree_joints(tree)
    tree_height = len(tasks) * ROW
    labels = text_width(tasks)
    right = MARGIN + TREE_WIDTH
    height = HEADING + MARGIN + max(tree_height, legend_height(categories)) + 0.5 + MARGIN
    width = right + 0.25 + labels + 0.3 + legend_width(categories) + MARGIN
    figure = new_canvas(width, height, title)
    top = height - HEADING - MARGIN
    axes = place(figure, MARGIN, top - tree_height, TREE_WIDTH, tree_height)
    for places, distances in joints:
        axes.plot(distances, places, **LINE)
    # The root on the left, the first task on top.
    axes.set(xlim=(_reach(tree), 0), ylim=(len(tasks) - 0.5, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="x", length=2)
    axes.set_xlabel(distance, fontsize=FONT, color=INK)
    axes.yaxis.tick_right()
    axes.set_yticks(range(len(tasks)), [tasks[leaf] for leaf in leaves])
    axes.tick_params(axis="y", length=0, pad=14)
    chosen = [categories[leaf] for leaf in leaves]
    colour_labels(axes, chosen)
    offset = -0.1 / TREE_WIDTH * _reach(tree)
    mark_categories(axes, np.array([(offset, row) for row in range(len(tasks))]), chosen)
    strip_frame(axes, "left", "right", "top")
    add_legend(figure, right + 0.25 + labels + 0.3, top, chosen)
    return figure


def radial_dendrogram(
    tree: Float[np.ndarray, "T-1 4"],
    tasks: Sequence[str],
    *,
    categories: Sequence[str],
    title: str,
) -> Figure:
    """Draw the tree with its root in the middle and the tasks around it.

    Args:
        tree: As `mttl.analysis.clustering.task_tree` returns it.
        tasks: Names of the tasks.
        categories: One per task.
        title: Of the figure.
    """
    leaves, joints = tree_joints(tree)
    n_tasks = len(tasks)
    # One row of text per task along the circle, and a gap of one where the ends meet.
    radius = max(SMALLEST_RADIUS, ROW * (n_tasks + 1) / (2 * np.pi))
    reach = radius + 0.2 + text_width(tasks)
    height = HEADING + max(2 * reach, legend_height(categories)) + 2 * MARGIN
    width = 2 * reach + 2 * MARGIN + GAP + legend_width(categories)
    figure = new_canvas(width, height, title)
    axes = place(figure, MARGIN, height - HEADING - MARGIN - 2 * reach, 2 * reach, 2 * reach)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    axes.set_axis_off()

    def angle(places: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """The first task is at the top; the others follow clockwise."""
        return np.pi / 2 - 2 * np.pi * (places + 0.5) / (n_tasks + 1)

    scale = radius / _reach(tree)
    for places, distances in joints:
        around = np.linspace(places[1], places[2], ARC_POINTS)
        angles = angle(np.concatenate([places[:1], around, places[3:]]))
        joint = np.full(ARC_POINTS, distances[1])
        radii = radius - scale * np.concatenate([distances[:1], joint, distances[3:]])
        axes.plot(radii * np.cos(angles), radii * np.sin(angles), **LINE)
    chosen = [categories[leaf] for leaf in leaves]
    looks = category_looks(chosen)
    angles = angle(np.arange(n_tasks))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    mark_categories(axes, (radius + 0.07) * directions, chosen)
    for leaf, category, theta, (across, up) in zip(leaves, chosen, angles, directions, strict=True):
        left_half = across < 0  # there the text is turned, so that it is never upside down
        axes.text(
            (radius + 0.16) * across,
            (radius + 0.16) * up,
            tasks[leaf],
            rotation=np.degrees(theta) + (180 if left_half else 0),
            rotation_mode="anchor",
            ha="right" if left_half else "left",
            va="center_baseline",
            fontsize=FONT,
            color=looks[category].ink,
        )
    add_legend(figure, MARGIN + 2 * reach + GAP, height - HEADING - MARGIN, chosen)
    return figure


def _reach(tree: Float[np.ndarray, "T-1 4"]) -> float:
    """The distance that the drawing spans: a little more than the root's."""
    return 1.04 * float(tree[-1, 2]) or 1.0
