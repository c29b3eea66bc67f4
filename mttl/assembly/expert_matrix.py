"""The matrix of the Expert baseline: a CSV file with a row of weights per task."""

import csv
import io
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.config.load import resolve_path
from mttl.io.errors import ConfigError, nearest
from mttl.io.reading import read_text


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
    lines = csv.reader(io.StringIO(read_text(path, ConfigError), newline=""))
    try:
        header = next(lines, [])
        if not header or header[0] != "task" or len(header) < 2:
            raise ConfigError(f"'{path}': the first line must be `task` and the names of skills")
        for number, cells in enumerate(lines, start=2):
            if len(cells) != len(header):
                raise ConfigError(
                    f"'{path}' line {number} has {len(cells)} cells; the header has {len(header)}"
                )
            if cells[0] in rows:
                raise ConfigError(f"'{path}' line {number} is a second row of '{cells[0]}'")
            rows[cells[0]] = [float(cell) for cell in cells[1:]]
    except ConfigError:
        raise
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"'{path}' line {lines.line_num}: {error}") from error
    for task in tasks:
        if task not in rows:
            raise ConfigError(
                f"'{path}' has no row for the task '{task}'.{nearest(task, rows)} Name the matrix "
                "of your gym in data.expert_matrix; router/expert_*.csv are those that are shipped"
            )
        if not all(math.isfinite(weight) and weight >= 0 for weight in rows[task]):
            raise ConfigError(f"'{path}': the weights of '{task}' must be finite and at least 0")
        if not any(rows[task]):
            raise ConfigError(f"'{path}' gives the task '{task}' no skill; its weights are all 0")
    if len(header) - 1 != n_skills:
        raise ConfigError(
            f"'{name}' has columns for {len(header) - 1} skills, but skills.n_skills is "
            f"{n_skills}; they must be equal, as skills.n_skills: per_column makes them"
        )
    return torch.tensor([rows[task] for task in tasks])
