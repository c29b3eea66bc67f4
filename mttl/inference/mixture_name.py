"""Names of mixtures of tasks, such as ``mix:task_a=0.7,task_b=0.3``."""

from mttl.io.errors import TaskError

MIXTURE = "mix:"  # beginning of the name of a mixture


def shares_of(name: str) -> dict[str, float]:
    """Return the tasks and shares in the name of a mixture; raises a TaskError if malformed."""
    parts = [part.rpartition("=") for part in name.removeprefix(MIXTURE).split(",")]
    try:
        shares = {task.strip(): float(share) for task, _, share in parts}
    except ValueError:
        shares = {}
    if len(shares) < len(parts):
        raise TaskError("a mixture must have the form mix:task_a=0.7,task_b=0.3, each task once")
    return shares
