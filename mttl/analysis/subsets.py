"""Which skills each task uses, and which tasks use the same ones."""

import numpy as np
from jaxtyping import Bool


def skill_subsets(active: Bool[np.ndarray, "T K"]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Group the tasks by their subset of skills.

    Args:
        active: Whether a task uses a skill: its probability lies above one half.

    Returns:
        Each subset that occurs and the ids of its tasks; small subsets first, as in the appendix
        of Ponti, Sordoni, Bengio and Reddy, EACL 2023.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for task, row in enumerate(active):
        found.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(task)
    return sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
