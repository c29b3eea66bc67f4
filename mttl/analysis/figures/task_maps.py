"""Dendrograms of tasks, upright and radial, and maps of tasks as labelled points."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mttl.analysis.clustering import tree_joints
from mttl.analysis.figures import canvas
from mttl.analysis.palette import category_looks
from mttl.analysis.routing_view import RoutingView

TREE_WIDTH = 4.0  # inches
SMALLEST_RADIUS = 1.6
LINE = {"color": "#555555", "linewidth": 0.8, "solid_capstyle": "round"}
ARC_POINTS = 40

AREA_PER_LABEL = 6.0  # square inches of paper per square inch of text
SMALLEST = 5.0
DOT = 0.09  # inches
TEXT = 0.125  # height of a label in inches
SPACE = 0.06  # after a label

Box = tuple[float, float, float, float]  # left, bottom, right, top


@canvas.styled
def dendrogram(view: RoutingView, title: str) -> Figure:
    """Draw the dendrogram with the tasks on the right."""
    tasks, (leaves, joints) = view.record.tasks, tree_joints(view.tree)
    top = len(tasks) * canvas.ROW
    figure = canvas.new_sheet(title, 0, top + 2 * canvas.GAP)
    axes = canvas.place(figure, 0, 0, TREE_WIDTH, top)
    for places, distances in joints:
        axes.plot(distances, places, **LINE)
    # The root on the left, the first task on top.
    axes.set(xlim=(_reach(view.tree), 0), ylim=(len(tasks) - 0.5, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="x", length=2)
    axes.set_xlabel("1 − correlation")
    axes.yaxis.tick_right()
    chosen = [view.categories[leaf] for leaf in leaves]
    canvas.label_rows(axes, [tasks[leaf] for leaf in leaves], chosen, marks=1 + 0.1 / TREE_WIDTH)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.set_label_position("right")
    axes.spines[["left", "right", "top"]].set_visible(False)
    canvas.add_legend(figure, TREE_WIDTH + canvas.text_width(tasks) + 0.7, top, chosen)
    return figure


@canvas.styled
def radial_dendrogram(view: RoutingView, title: str) -> Figure:
    """Draw the dendrogram with its root in the middle and the tasks around it."""
    tasks, (leaves, joints) = view.record.tasks, tree_joints(view.tree)
    n_tasks = len(tasks)
    # One row of text per task along the circle, and a gap of one where the ends meet.
    radius = max(SMALLEST_RADIUS, canvas.ROW * (n_tasks + 1) / (2 * np.pi))
    reach = radius + 0.2 + canvas.text_width(tasks)
    figure = canvas.new_sheet(title, 0, 2 * reach + canvas.GAP)
    axes = canvas.place(figure, 0, 0, 2 * reach, 2 * reach)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    axes.set_axis_off()
    figure.text(0, -canvas.GAP, "radius: 1 − correlation, 0 at the tasks")

    def angle(places: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """Return angles clockwise from the top."""
        return np.pi / 2 - 2 * np.pi * (places + 0.5) / (n_tasks + 1)

    scale = radius / _reach(view.tree)
    for places, distances in joints:
        around = np.linspace(places[1], places[2], ARC_POINTS)
        angles = angle(np.concatenate([places[:1], around, places[3:]]))
        joint = np.full(ARC_POINTS, distances[1])
        radii = radius - scale * np.concatenate([distances[:1], joint, distances[3:]])
        axes.plot(radii * np.cos(angles), radii * np.sin(angles), **LINE)
    chosen = [view.categories[leaf] for leaf in leaves]
    looks = category_looks(chosen)
    angles = angle(np.arange(n_tasks))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    canvas.mark_categories(axes, (radius + 0.07) * directions, chosen)
    for leaf, category, theta, direction in zip(leaves, chosen, angles, directions, strict=True):
        left_half = direction[0] < 0  # here the text is rotated by 180° so as to stay upright
        x, y = (radius + 0.16) * direction
        axes.text(
            *(x, y, tasks[leaf]),
            rotation=np.degrees(theta) + (180 if left_half else 0),
            rotation_mode="anchor",
            ha="right" if left_half else "left",
            va="center_baseline",
            color=looks[category].ink,
        )
    canvas.add_legend(figure, 2 * reach + canvas.GAP, 2 * reach, chosen)
    return figure


def _reach(tree: Float[np.ndarray, "T-1 4"]) -> float:
    """Return the distance that the drawing spans: 1.04 times that of the root."""
    return 1.04 * float(tree[-1, 2]) or 1.0


@canvas.styled
def task_map(
    points: Float[np.ndarray, "T 2"],
    view: RoutingView,
    title: str,
    axis_names: tuple[str, str],
    trails: Sequence[Float[np.ndarray, "S 2"]] = (),
) -> Figure:
    """Draw tasks as labelled points; a displaced label has a thin line to its point.

    A trail shows how the routing weights of a task changed; it begins with a ring.
    """
    tasks, categories = view.record.tasks, view.categories
    widths = [canvas.text_width([task]) + SPACE for task in tasks]
    size = max(SMALLEST, float(np.sqrt(AREA_PER_LABEL * sum(widths) * canvas.ROW)))
    figure = canvas.new_sheet(title, 0, size + canvas.GAP)
    axes = canvas.place(figure, 0, 0, size, size)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1], xlim=(0, size), ylim=(0, size))

    # From here on coordinates are inches, since labels are placed by their size.
    shown = np.concatenate([points, *trails])
    spread = np.ptp(shown, axis=0)
    shown = 0.4 + (shown - shown.min(0)) / np.where(spread > 0, spread, 1) * (size - 0.8)
    inches = shown[: len(points)]
    ways = np.split(shown[len(points) :], np.cumsum([len(trail) for trail in trails])[:-1])
    for way in ways if trails else ():
        axes.plot(*way.T, ".-", color=canvas.INK, linewidth=0.9, markersize=3, zorder=2)
        axes.plot(*way[0], "o", color=canvas.INK, markerfacecolor="white", markersize=6, zorder=2)
    looks = category_looks(categories)
    canvas.mark_categories(axes, inches, categories)
    boxes = place_labels(inches, widths, size)
    for task, category, point, box in zip(tasks, categories, inches, boxes, strict=True):
        nearest = np.clip(point, box[:2], box[2:])
        if np.linalg.norm(nearest - point) > 1.8 * DOT:
            axes.plot(*np.stack([point, nearest]).T, color=canvas.FAINT, linewidth=0.6, zorder=1)
        middle = (box[1] + box[3]) / 2
        axes.text(box[0], middle, task, color=looks[category].ink, va="center_baseline")
    canvas.add_legend(figure, size + 0.3, size, categories)
    return figure


def place_labels(
    points: Float[np.ndarray, "T 2"], widths: Sequence[float], size: float
) -> list[Box]:
    """Return a box for the label of every point: the nearest free one.

    Boxes overlap neither each other nor a point, unless the square has no room for a label.
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
    """Yield boxes around a point on growing rings; the first is to its right."""
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
