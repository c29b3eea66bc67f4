"""The tree of tasks, upright and round."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.clustering import tree_joints
from mttl.analysis.figures.canvas import (
    GAP,
    ROW,
    add_legend,
    label_rows,
    mark_categories,
    new_sheet,
    place,
    styled,
    text_width,
)
from mttl.analysis.palette import category_looks

TREE_WIDTH = 4.0  # inches
SMALLEST_RADIUS = 1.6
LINE = {"color": "#555555", "linewidth": 0.8, "solid_capstyle": "round"}
ARC_POINTS = 40


@styled
def dendrogram(
    tree: Float[np.ndarray, "T-1 4"], tasks: Sequence[str], *, categories: Sequence[str], title: str
) -> Figure:
    """Draw the tree with its leaves, the tasks, on the right."""
    leaves, joints = tree_joints(tree)
    top = len(tasks) * ROW
    figure = new_sheet(title, 0, top + 2 * GAP)
    axes = place(figure, 0, 0, TREE_WIDTH, top)
    for places, distances in joints:
        axes.plot(distances, places, **LINE)
    # The root on the left, the first task on top.
    axes.set(xlim=(_reach(tree), 0), ylim=(len(tasks) - 0.5, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="x", length=2)
    axes.set_xlabel("1 − correlation")
    axes.yaxis.tick_right()
    chosen = [categories[leaf] for leaf in leaves]
    label_rows(axes, [tasks[leaf] for leaf in leaves], chosen, marks=1 + 0.1 / TREE_WIDTH)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
    add_legend(figure, TREE_WIDTH + text_width(tasks) + 0.55, top, chosen)
    return figure


@styled
def radial_dendrogram(
    tree: Float[np.ndarray, "T-1 4"], tasks: Sequence[str], *, categories: Sequence[str], title: str
) -> Figure:
    """Draw the tree with its root in the middle and the tasks around it."""
    leaves, joints = tree_joints(tree)
    n_tasks = len(tasks)
    # One row of text per task along the circle, and a gap of one where the ends meet.
    radius = max(SMALLEST_RADIUS, ROW * (n_tasks + 1) / (2 * np.pi))
    reach = radius + 0.2 + text_width(tasks)
    figure = new_sheet(title, 0, 2 * reach + GAP)
    axes = place(figure, 0, 0, 2 * reach, 2 * reach)
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
    for leaf, category, theta, direction in zip(leaves, chosen, angles, directions, strict=True):
        left_half = direction[0] < 0  # there the text is turned, so that it is never upside down
        axes.text(
            *(radius + 0.16) * direction,
            tasks[leaf],
            rotation=np.degrees(theta) + (180 if left_half else 0),
            rotation_mode="anchor",
            ha="right" if left_half else "left",
            va="center_baseline",
            color=looks[category].ink,
        )
    add_legend(figure, 2 * reach + GAP, 2 * reach, chosen)
    return figure


def _reach(tree: Float[np.ndarray, "T-1 4"]) -> float:
    """The distance that the drawing spans: a little more than the root's."""
    return 1.04 * float(tree[-1, 2]) or 1.0
