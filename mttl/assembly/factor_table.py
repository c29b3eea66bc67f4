"""The factors of tasks, by which a metadata router composes rows."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.config.schema import Config
from mttl.io.errors import ConfigError, nearest
from mttl.tasks.folder import Gym

Table = Mapping[str, Sequence[str]]


def with_factors(config: Config, gym: Gym, tasks: Sequence[str]) -> Config:
    """Return a configuration that names the factors of its tasks, where it routes by them.

    Raises:
        TaskError: If TASKS.csv says nothing of a task.
    """
    router = config.router
    if router.kind != "metadata" or router.factors:
        return config
    table = {task: gym.factors(task) for task in tasks}
    return config.model_copy(update={"router": router.model_copy(update={"factors": table})})


def factor_rows(
    table: Table, tasks: Sequence[str], known: Table | None = None
) -> Float[Tensor, "T F"]:
    """Return which tasks have which factors, as 1 or 0.

    Args:
        table: The factors of these tasks, and maybe of others.
        tasks: Whose rows to return.
        known: The table that says which factors there are, in their order; by default the same.

    Raises:
        ConfigError: If a task is not in the table, or has a factor that is not known.
    """
    names = list(dict.fromkeys(name for own in (known or table).values() for name in own))
    rows = torch.zeros(len(tasks), len(names))
    for row, task in zip(rows, tasks, strict=True):
        if task not in table:
            raise ConfigError(
                f"router.factors says nothing of the task '{task}'.{nearest(task, table)} Name its "
                "factors there, or those of all tasks in the column 'factors' of TASKS.csv"
            )
        for name in table[task]:
            if name not in names:
                raise ConfigError(
                    f"the task '{task}' has the factor '{name}', which no task of training "
                    f"has.{nearest(name, names)} Learn it, with adapt.init 'mean' or 'fresh'"
                )
            row[names.index(name)] = 1
    return rows
