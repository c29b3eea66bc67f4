"""Heat maps of task matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from mttl.analysis.figures import canvas
from mttl.analysis.routing_view import RoutingView

COLOUR_MAP = "cividis"
AROUND_ZERO = "RdBu_r"  # blue below zero, white at it, red above
SCALE = 1.6  # inches: a colour bar with its name, and the space below
PANEL = (1.25, 2.6)  # smallest and largest width of one of several panels, in inches
BAR = 0.14
MARKS = -0.1  # position of the markers of categories, in inches from the axes


@canvas.styled
def heat_maps(
    panels: Float[np.ndarray, "P T K"],
    names: Sequence[str],
    view: RoutingView,
    title: str,
    *,
    changes: str = "",
    less_is_worse: bool = False,
    skills: Sequence[str] = (),
) -> Figure:
    """Draw matrices of tasks by skills side by side, in the view's order and one scale.

    ``names`` are the headings; long ones break at dots and slashes. ``changes`` names the quantity
    of the last panel, which then has its own scale around zero, with worse in red. Skills are
    numbered if ``skills`` has no names.
    """
    n_panels, n_tasks, n_skills = panels.shape
    panel = max(n_skills * canvas.ROW, PANEL[0])
    if n_panels > 1:
        panel = min(panel, PANEL[1])
    headings = [_broken(name, int(panel / 0.066)) for name in names]
    n_lines = max(heading.count("\n") + 1 for heading in headings)
    top = n_tasks * canvas.ROW
    right = n_panels * (panel + canvas.GAP) + 0.2
    figure = canvas.new_sheet(title, 0, top + (n_lines + 1) * canvas.ROW + 2 * canvas.GAP)
    plain = panels[:-1] if changes else panels
    low, high = float(plain.min()), float(plain.max())
    scale = {"cmap": COLOUR_MAP, "vmin": low, "vmax": high if high > low else low + 1}
    named, chosen = _in_order(view)
    for number, (matrix, heading) in enumerate(zip(panels, headings, strict=True)):
        axes = canvas.place(figure, number * (panel + canvas.GAP), 0, panel, top)
        if changes and number == n_panels - 1:
            scale = _around_zero(matrix, less_is_worse)
        image = axes.imshow(matrix[view.order], aspect="auto", interpolation="nearest", **scale)
        axes.set_title(heading, pad=4 + canvas.ROW * 72)
        axes.set_xlabel("member" if skills else "skill")
        if skills:
            axes.set_xticks(range(n_skills), skills, rotation=90)
        else:
            width = n_skills * canvas.text_width([str(n_skills)])
            every = max(1, int(np.ceil(width * 1.6 / panel)))
            axes.set_xticks(range(0, n_skills, every))
            axes.tick_params(labeltop=True)
        if number == 0:
            canvas.label_rows(axes, named, chosen, marks=MARKS / panel)
            _add_scale(figure, image, right, top, "mixing weight")
    if changes:
        _add_scale(figure, image, right, top - SCALE, changes)
    canvas.add_legend(figure, right, top - (2 if changes else 1) * SCALE, chosen)
    return figure


@canvas.styled
def similarity_matrix(
    similarity: Float[np.ndarray, "T T"],
    view: RoutingView,
    title: str,
    quantity: str = "correlation",
) -> Figure:
    """Draw the similarity of all pairs of tasks; the diagonal, always 1, is left out."""
    names, chosen = _in_order(view)
    size = len(names) * canvas.ROW
    figure = canvas.new_sheet(title, 0, size + 3 * canvas.GAP)
    axes = canvas.place(figure, 0, 0, size, size)
    ordered = similarity[np.ix_(view.order, view.order)]
    shown = np.ma.array(ordered, mask=np.eye(len(names), dtype=bool))
    image = axes.imshow(shown, interpolation="nearest", aspect="auto", **_around_zero(shown))
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_xlabel("task")
    canvas.label_rows(axes, names, chosen, marks=MARKS / size)
    for label, coloured in zip(axes.get_xticklabels(), axes.get_yticklabels(), strict=True):
        label.set_color(coloured.get_color())
    _add_scale(figure, image, size + 0.3, size, quantity)
    canvas.add_legend(figure, size + 0.3, size - SCALE, chosen)
    return figure


def _in_order(view: RoutingView) -> tuple[list[str], list[str]]:
    """Return the tasks and their categories in the order of the tree."""
    tasks, categories = view.record.tasks, view.categories
    return [tasks[task] for task in view.order], [categories[task] for task in view.order]


def _around_zero(values: np.ndarray, reverse: bool = False) -> dict[str, Any]:
    """Return the settings of a diverging colour scale around zero."""
    largest = float(np.abs(values).max()) or 1.0
    colours = AROUND_ZERO.removesuffix("_r") if reverse else AROUND_ZERO
    return {"cmap": colours, "vmin": -largest, "vmax": largest}


def _add_scale(figure: Figure, image: AxesImage, left: float, top: float, quantity: str) -> None:
    """Draw a colour bar, one inch high, with its name above."""
    axes = canvas.place(figure, left, top - 1.2, BAR, 1.0)
    figure.colorbar(image, cax=axes).outline.set_visible(False)  # type: ignore[operator]
    axes.tick_params(length=2, labelsize=canvas.FONT)
    axes.set_title(quantity, loc="left")


def _broken(name: str, n_characters: int) -> str:
    """Break a name at dots and slashes into lines of at most ``n_characters`` where possible."""
    lines = [""]
    for part in name.replace("/", "/\0").replace(".", ".\0").split("\0"):
        if lines[-1] and len(lines[-1] + part) > n_characters:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
