"""Vector environments of many levels, in this process or in worker processes.

Workers receive short messages; actions, observations, rewards and flags are in shared memory.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from envs.interface import Observation, Transition, VectorEnv
from envs.local import SLOT, LocalVectorEnv, observation_of, transition_of
from envs.pool import PoolVectorEnv
from envs.process import WorkerProcess, close_workers

# A folder in memory, if there is one.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def make_vector_env(
    levels: Sequence[str],
    n_slots: int,
    *,
    seed: int,
    backend: Literal["minigrid", "envpool"] = "minigrid",
    n_workers: int = 0,
    evaluation: bool = False,
    first_slot: int = 0,
    max_steps: int | None = None,
) -> VectorEnv:
    """Return N environments of each of T levels.

    In training, each slot has one seed, and later episodes continue its random numbers. In
    evaluation every episode has a seed: slot n plays the episodes n, n + N, n + 2N, ...

    Args:
        levels: Names of T levels, without repetition.
        n_slots: Number of environments N per level.
        seed: Seed of the run; see `envs.interface.slot_seed`.
        backend: Implementation: "minigrid" is exact and can be saved, "envpool" is faster.
        n_workers: Number of worker processes; 0 runs the environments in this process.
        evaluation: Whether to play the fixed evaluation episodes.
        first_slot: Number of the first slot, which differs between ranks of a distributed run.
        max_steps: Steps after which an episode is truncated, if its level does not end it earlier.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
    """
    common: dict[str, Any] = {"seed": seed, "evaluation": evaluation, "first_slot": first_slot}
    if backend == "envpool":
        return PoolVectorEnv(levels, n_slots, **common)
    common["max_steps"] = max_steps
    if n_workers:
        return WorkerVectorEnv(levels, n_slots, n_workers=n_workers, **common)
    return LocalVectorEnv(levels, n_slots, **common)


class WorkerVectorEnv(VectorEnv):
    """Environments in ``n_workers`` processes; see `make_vector_env`.

    Every worker has adjacent slots of all levels, which balances the load. Results and states equal
    those of a `LocalVectorEnv`. An interrupted call is finished before the next one starts. Workers
    end with `close`, with this object, or with this process.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        n_workers: int,
        first_slot: int = 0,
        **given: Any,
    ) -> None:
        super().__init__(levels, n_slots)
        bounds = [n_slots * worker // n_workers for worker in range(n_workers + 1)]
        self._parts = [slice(start, stop) for start, stop in pairwise(bounds)]
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, close_workers, self._workers)
        shape = len(self.levels), n_slots
        # The file has no name, so the system removes it with the last process.
        with tempfile.TemporaryFile(dir=MEMORY) as file:
            file.truncate(SLOT.itemsize * shape[0] * n_slots)
            memory = file.fileno()
            self._slots = map_slots(memory, shape)
            for part in self._parts:
                numbers = f"{first_slot + part.start} to {first_slot + part.stop - 1}"
                name = f"the worker of slots {numbers} of {', '.join(self.levels)}"
                self._workers.append(WorkerProcess("envs.vector:play", name, shared=[memory]))
            given |= {"levels": self.levels, "first_slot": first_slot}
            self._ask("make", [(memory, shape, part, given) for part in self._parts])

    def reset(self) -> Observation:
        self._ask("reset")
        return observation_of(self._slots)

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        self._slots["action"] = actions
        self._ask("act")
        return transition_of(self._slots)

    def state(self) -> dict[str, Any]:
        """Return the state of all workers; see `LocalVectorEnv.state`."""
        states = self._ask("state")
        rows = zip(*(state["slots"] for state in states), strict=True)
        return {**states[0], "slots": [[slot for part in row for slot in part] for row in rows]}

    def load_state(self, state: dict[str, Any]) -> Observation:
        """Restore a state of any number of workers."""
        arguments = []
        for part in self._parts:
            slots, first = [row[part] for row in state["slots"]], state["first_slot"] + part.start
            arguments.append((state | {"slots": slots, "first_slot": first},))
        self._ask("load_state", arguments)
        return observation_of(self._slots)

    def close(self) -> None:
        self._finalizer()

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Return the results of a method of every worker's environments."""
        for worker in self._workers:
            worker.drain()  # results of an interrupted call
        for worker, own in zip(self._workers, arguments or [()] * len(self._workers), strict=True):
            worker.ask(method, *own)
        return [worker.answer() for worker in self._workers]


_env: LocalVectorEnv  # environments of this process, if it is a worker


def play(method: str, *arguments: Any) -> Any:
    """Create the environments of this worker, or call a method; only `state` has a result."""
    global _env
    if method == "make":
        memory, shape, part, given = arguments
        slots = map_slots(memory, shape)[:, part]
        given["first_slot"] += part.start
        _env = LocalVectorEnv(n_slots=slots.shape[1], stride=shape[1], slots=slots, **given)
        return None
    found = getattr(_env, method)(*arguments)
    return found if method == "state" else None


def map_slots(memory: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the slots (T, N) in the memory of a file descriptor."""
    return np.ndarray(shape, SLOT, buffer=mmap.mmap(memory, 0))
