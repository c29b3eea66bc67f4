"""Names of mixtures of tasks, and of sums of their logits.

Examples are ``mix:task_a=0.7,task_b=0.3`` and ``logits:task_a=1,task_b=-0.5``.
"""

import math
from collections.abc import Iterable

from mttl.io.errors import TaskError

MIXTURE, LOGITS = "mix:", "logits:"  # beginnings of names


def is_combined(name: str) -> bool:
    """Return whether a name is that of a mixture or a sum of logits."""
    return name.startswith((MIXTURE, LOGITS))


def tasks_in(name: str) -> list[str]:
    """Return the tasks in a name, which may be a single task; a TaskError if malformed."""
    return [*shares_of(name)] if is_combined(name) else [name]


def shares_of(name: str) -> dict[str, float]:
    """Return the tasks and numbers in a name; raises a TaskError if malformed."""
    kind = LOGITS if name.startswith(LOGITS) else MIXTURE
    shares = weights_of(name.removeprefix(kind).split(","))
    if shares is None or (kind == LOGITS and next(iter(shares.values())) <= 0):
        form = f"a mixture must have the form {MIXTURE}task_a=0.7,task_b=0.3, each task once"
        if kind == LOGITS:
            form = f"a sum of logits must have the form {LOGITS}task_a=1,task_b=-0.5, each task "
            form += "once and the first weight above 0"
        raise TaskError(form)
    return shares


def weights_of(pairs: Iterable[str]) -> dict[str, float] | None:
    """Return the weights in texts ``task=weight``; None if one is malformed or repeated."""
    parts = [pair.rpartition("=") for pair in pairs]
    try:
        weights = {task.strip(): float(weight) for task, _, weight in parts}
    except ValueError:
        return None
    right = len(weights) == len(parts) and all(map(math.isfinite, weights.values()))
    right = right and "," not in "".join(weights)
    return weights if right else None
