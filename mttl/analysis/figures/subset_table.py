"""Which tasks use the same skills, as a table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from matplotlib.figure import Figure

from mttl.analysis.figures.canvas import (
    FAINT,
    FONT,
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
    legend_height,
    legend_width,
)
from mttl.analysis.palette import category_looks

TASKS_WIDTH = 6.5  # inches, unless one name is longer
DOTS_WIDTH = 5.0  # inches, at most


def subset_table(
    active: Bool[np.ndarray, "T K"],
    tasks: Sequence[str],
    *,
    categories: Sequence[str],
    title: str,
) -> Figure:
    """List the subsets of skills in use: the skills, how many tasks use just these, which they are.

    Args:
        active: Whether a task uses a skill.
        tasks: Names of the tasks.
        categories: One per task.
        title: Of the figure.
    """
    n_skills = active.shape[1]
    looks = category_looks(categories)
    space = min(ROW, DOTS_WIDTH / n_skills)
    names = MARGIN + n_skills * space + 0.5  # where the names start
    rows = [
        (subset, _flow([tasks[task] for task in members]), members)
        for subset, members in skill_subsets(active)
    ]
    n_lines = [1 + max(line for _, line in placed) for _, placed, _ in rows]
    breadth = max(
        x + text_width([tasks[task]])
        for _, placed, members in rows
        for (x, _), task in zip(placed, members, strict=True)
    )
    body = ROW * (sum(n_lines) + 0.6 * len(rows))
    width = names + breadth + 0.3 + legend_width(categories) + MARGIN
    height = HEADING + 1.5 * ROW + MARGIN + max(body, legend_height(categories)) + MARGIN
    figure = new_canvas(width, height, title)
    # Axes that cover the figure, in inches from its upper left corner.
    axes = place(figure, 0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()

    style = {"fontsize": FONT, "va": "center"}
    y = HEADING + MARGIN + 0.5 * ROW
    every = max(1, int(np.ceil(text_width([str(n_skills)]) * 1.5 / space)))
    for skill in range(0, n_skills, every):
        axes.text(MARGIN + (skill + 0.5) * space, y, str(skill), ha="center", color=INK, **style)
    axes.text(names - 0.12, y, "n", ha="right", color=INK, **style)
    axes.text(names, y, "tasks", color=INK, **style)
    y += ROW
    for (subset, placed, members), lines in zip(rows, n_lines, strict=True):
        axes.plot([MARGIN, names + breadth], [y, y], color=FAINT, linewidth=0.5)
        y += 0.8 * ROW
        for skill in range(n_skills):
            axes.plot(
                MARGIN + (skill + 0.5) * space,
                y,
                "o",
                markersize=min(6.0, 40 * space),
                color=INK if skill in subset else "#e4e4e4",
            )
        axes.text(names - 0.12, y, str(len(members)), ha="right", color=INK, **style)
        for task, (x, line) in zip(members, placed, strict=True):
            ink = looks[categories[task]].ink
            axes.text(names + x, y + line * ROW, tasks[task], color=ink, **style)
        y += ROW * (lines - 0.2)
    add_legend(figure, names + breadth + 0.3, height - HEADING - MARGIN, categories)
    return figure


def _flow(texts: Sequence[str]) -> list[tuple[float, int]]:
    """Where each text of a paragraph stands: inches from the left, and its line."""
    places, x, line = [], 0.0, 0
    for text in texts:
        needed = text_width([text])
        if x and x + needed > TASKS_WIDTH:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += needed + 0.13
    return places


def skill_subsets(active: Bool[np.ndarray, "T K"]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Group the tasks by their subset of skills.

    Returns:
        Each subset that occurs and the ids of its tasks; small subsets first, as in the appendix
        of Ponti, Sordoni, Bengio and Reddy, EACL 2023.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for task, row in enumerate(active):
        found.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(task)
    return sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
