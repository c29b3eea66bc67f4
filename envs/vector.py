"""Make the environments of many levels that step together."""

from collections.abc import Sequence
from typing import Any, Literal

from envs.interface import VectorEnv
from envs.local import LocalVectorEnv
from envs.pool import PoolVectorEnv
from envs.worker import WorkerVectorEnv


def make_vector_env(
    levels: Sequence[str],
    n_slots: int,
    *,
    seed: int,
    backend: Literal["minigrid", "envpool"] = "minigrid",
    n_workers: int = 0,
    evaluation: bool = False,
    first_slot: int = 0,
) -> VectorEnv:
    """Make N environments of each of T levels.

    In training, a slot seeds its environment once and each later episode goes on with the
    environment's own random numbers. In evaluation every episode has a seed of its own (see
    `envs.episodes`): slot n plays the episodes n, n + N, n + 2N, ...

    Args:
        levels: Names of T levels, each once.
        n_slots: N.
        seed: Of the run; see `envs.interface.slot_seed`.
        backend: "minigrid" is exact and can be saved; "envpool" is a faster reimplementation.
        n_workers: Processes to spread the slots over; with 0 they run in this one.
        evaluation: Play the fixed episodes of evaluation instead.
        first_slot: Number of the first slot; gives each rank of a distributed run slots of its own.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
    """
    common: dict[str, Any] = {"seed": seed, "evaluation": evaluation, "first_slot": first_slot}
    if backend == "envpool":
        return PoolVectorEnv(levels, n_slots, **common)
    if n_workers:
        return WorkerVectorEnv(levels, n_slots, n_workers=n_workers, **common)
    return LocalVectorEnv(levels, n_slots, **common)
