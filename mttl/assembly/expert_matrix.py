"""The matrix of the Expert baseline: a CSV file with a row of weights per task."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.config.load import resolve_path
from mttl.io.errors import ConfigError, nearest
from mttl.io.reading import read_table, to_number


def read_expert_matrix(name: str, tasks: Sequence[str], n_skills: int) -> Float[Tensor, "T K"]:
    """Read the weights of the Expert baseline.

    Args:
        name: A CSV file: a header ``task`` and the skills' names, then a row per task; looked up as
            given, then under the shipped configurations.
        tasks: The tasks whose rows to return, in this order; the file may hold more.
        n_skills: Skills K of the inventory.

    Raises:
        ConfigError: If the file is missing or malformed, has columns for another number of skills,
            or a task has no row or no skill.
    """
    path = resolve_path(name, "router.matrix")
    rows: dict[str, list[float]] = {}
    n_columns = 0
    for row in read_table(path, ConfigError, ("task",)):
        task = row.pop("task")
        if task in rows:
            raise ConfigError(f"'{path}' has two rows of '{task}'")
        place, n_columns = f"'{path}': a weight of '{task}'", len(row)
        rows[task] = [to_number(cell, place, ConfigError) for cell in row.values()]
    for task in tasks:
        if task not in rows:
            raise ConfigError(
                f"'{path}' has no row for the task '{task}'.{nearest(task, rows)} Name the matrix "
                "of your gym in data.expert_matrix; router/expert_*.csv are those that are shipped"
            )
        if not all(weight >= 0 for weight in rows[task]) or not any(rows[task]):
            raise ConfigError(
                f"'{path}': the weights of '{task}' must be at least 0, and one of them above"
            )
    if n_columns != n_skills:
        raise ConfigError(
            f"'{name}' has columns for {n_columns} skills, but skills.n_skills is "
            f"{n_skills}; they must be equal, as skills.n_skills: per_column makes them"
        )
    return torch.tensor([rows[task] for task in tasks])
