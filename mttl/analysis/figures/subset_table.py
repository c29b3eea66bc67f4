"""Which tasks use the same skills, as a table."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from matplotlib.figure import Figure

from mttl.analysis.figures.canvas import FAINT, GAP, INK, ROW, new_sheet, place, styled, text_width
from mttl.analysis.figures.categories import add_legend
from mttl.analysis.palette import category_looks

TASKS_WIDTH = 6.5  # inches, unless one name is longer
DOTS_WIDTH = 5.0  # inches, at most


@styled
def subset_table(
    active: Bool[np.ndarray, "T K"],
    tasks: Sequence[str],
    *,
    categories: Sequence[str],
    title: str,
) -> Figure:
    """List the subsets of skills in use, how many tasks use just these, and which they are."""
    n_skills = active.shape[1]
    looks = category_looks(categories)
    space = min(ROW, DOTS_WIDTH / n_skills)
    names = n_skills * space + 0.5  # where the names start
    figure = new_sheet(title, 0, 1 + ROW + GAP)
    axes = place(figure, 0, 0, 1, 1)
    axes.set(xlim=(0, 1), ylim=(1, 0))  # inches, from the first row downwards
    axes.set_axis_off()
    dots = {"marker": "o", "linestyle": "none", "markersize": min(6.0, 40 * space)}
    every = max(1, int(np.ceil(text_width([str(n_skills)]) * 1.5 / space)))
    for skill in range(0, n_skills, every):
        axes.text((skill + 0.5) * space, 0, str(skill), ha="center", va="center")
    axes.text(names - 0.12, 0, "n", ha="right", va="center")
    axes.text(names, 0, "tasks", va="center")
    breadth, y = 0.0, ROW
    rules = []
    for subset, members in skill_subsets(active):
        rules.append(y)
        y += 0.8 * ROW
        for skill in range(n_skills):
            colour = INK if skill in subset else "#e4e4e4"
            axes.plot((skill + 0.5) * space, y, color=colour, clip_on=False, **dots)
        axes.text(names - 0.12, y, str(len(members)), ha="right", va="center")
        x = 0.0
        for task in members:
            needed = text_width([tasks[task]])
            if x and x + needed > TASKS_WIDTH:
                x, y = 0.0, y + ROW
            axes.text(names + x, y, tasks[task], color=looks[categories[task]].ink, va="center")
            breadth = max(breadth, x + needed)
            x += needed + 0.13
        y += 0.8 * ROW
    axes.hlines(rules, 0, names + breadth, color=FAINT, linewidth=0.5, clip_on=False)
    add_legend(figure, names + breadth + 0.3, 1, categories)
    return figure


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
