"""A vector environment whose slots are dealt to worker processes.

What goes back and forth in a step is one short message to each worker and its answer; actions,
observations, rewards and flags lie in memory that all share.
"""

import os
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.errors import LevelError, SimulationError
from envs.interface import Observation, Transition, check_levels
from envs.local import LocalVectorEnv
from envs.process import WorkerDied, WorkerProcess, close_workers
from envs.saved_state import SavedState
from envs.shared_slots import (
    allocate_slots,
    map_slots,
    read_observation,
    read_transition,
    write_observation,
    write_transition,
)


class WorkerVectorEnv:
    """T levels × N slots of environments, played by worker processes; see `VectorEnv`.

    Every worker has neighbouring slots of all levels, so that each has easy and hard ones. The
    results are those of a `LocalVectorEnv`, and so are the states. An interrupted call is finished
    before the next one begins. The workers end with `close`, with this object, or with this
    process.

    Args:
        levels: Names of T levels, each once.
        n_slots: N.
        seed: Of the run; see `envs.interface.slot_seed`.
        n_workers: Number of processes, at most N.
        evaluation: Play the fixed episodes of evaluation: slot n plays those numbered n, n + N, ...
        first_slot: Number of the first slot.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
        ValueError: If there are no workers, or more than slots.
        SimulationError: If a worker does not start.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        seed: int,
        n_workers: int,
        evaluation: bool = False,
        first_slot: int = 0,
    ) -> None:
        if not 1 <= n_workers <= n_slots:
            raise ValueError(
                f"n_workers ({n_workers}) must be from 1 to n_slots ({n_slots}): slots are dealt "
                "to workers"
            )
        self.levels = check_levels(levels)
        self.n_slots = n_slots
        bounds = [n_slots * worker // n_workers for worker in range(n_workers + 1)]
        self._parts = [slice(start, stop) for start, stop in pairwise(bounds)]
        self._begun = False
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, close_workers, self._workers)
        memory = allocate_slots(len(self.levels), n_slots)
        try:
            self._slots = map_slots(memory, len(self.levels), n_slots)
            for part in self._parts:
                numbers = f"{first_slot + part.start} to {first_slot + part.stop - 1}"
                name = f"the worker of slots {numbers} of {', '.join(self.levels)}"
                self._workers.append(WorkerProcess("envs.worker:serve", name, shared=[memory]))
            self._ask_all(
                [
                    (memory, n_slots, part, self.levels, seed, evaluation, first_slot)
                    for part in self._parts
                ]
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)

    def reset(self) -> Observation:
        """Begin again, from the seeds of the slots.

        Raises:
            LevelError: If a level has no step limit.
            SimulationError: If an environment raises, a worker dies, or they are closed.
        """
        self._get_ready(begun=False)
        self._ask_all(["reset"] * len(self._parts))
        self._begun = True
        return read_observation(self._slots)

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Do one action in every environment; begin the next episode where one ended.

        Raises:
            SimulationError: If an environment raises, a worker dies, or they are closed or have not
                begun.
        """
        self._get_ready()
        self._slots["action"] = actions
        self._ask_all(["step"] * len(self._parts))
        return read_transition(self._slots)

    def state(self) -> bytes:
        """Return the environments with their random numbers, and what was last seen of them.

        Raises:
            SimulationError: If a worker dies, or they are closed or have not begun.
        """
        self._get_ready()
        parts = self._ask_all(["state"] * len(self._parts))
        return SavedState.join([SavedState.decode(part) for part in parts]).encode()

    def load_state(self, state: bytes) -> Observation:
        """Go on from a state, taken with any number of workers or none.

        Raises:
            ValueError: As `LocalVectorEnv.load_state`.
            SimulationError: If a worker dies, or they are closed.
        """
        self._get_ready(begun=False)
        saved = SavedState.decode(state)
        parts = saved.split([part.stop - part.start for part in self._parts])
        self._ask_all([part.encode() for part in parts])
        self._begun = True
        return read_observation(self._slots)

    def close(self) -> None:
        """End the workers."""
        self._finalizer()
        self._workers.clear()

    def _get_ready(self, *, begun: bool = True) -> None:
        """Check that the environments can be asked; finish what an interrupt left undone."""
        if not self._finalizer.alive:
            raise SimulationError("the environments are closed; make new ones")
        if begun and not self._begun:
            raise SimulationError("the environments have not begun: call reset first")
        with self._closed_by_failure():
            for worker in self._workers:
                for answer in worker.outstanding():
                    _unless_error(answer)

    def _ask_all(self, messages: Sequence[Any]) -> list[Any]:
        """Send one message to every worker and return their answers."""
        with self._closed_by_failure():
            for worker, message in zip(self._workers, messages, strict=True):
                worker.ask(message)
            return [_unless_error(worker.answer()) for worker in self._workers]

    @contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        try:
            yield
        except (LevelError, SimulationError):
            self.close()
            raise
        except WorkerDied as death:
            self.close()
            raise SimulationError(str(death)) from death


def serve(connection: Connection) -> None:
    """Play slots as a worker; the first message says which, every other one what to do."""
    memory, n_slots, part, levels, seed, evaluation, first_slot = connection.recv()
    slots = map_slots(memory, len(levels), n_slots)[:, part]
    os.close(memory)
    env = LocalVectorEnv(
        levels,
        part.stop - part.start,
        seed=seed,
        evaluation=evaluation,
        first_slot=first_slot + part.start,
        stride=n_slots,
    )
    connection.send(None)
    while True:
        message = connection.recv()
        try:
            answer = _play(env, slots, message)
        except Exception as error:
            error.add_note(f"In the worker:\n{traceback.format_exc()}")
            answer = error
        connection.send(answer)


def _play(env: LocalVectorEnv, slots: np.ndarray, message: Any) -> bytes | None:
    """Do what a message says: a word, or a state to go on from."""
    if message == "step":
        write_transition(slots, env.step(slots["action"]))
    elif message == "state":
        return env.state()
    elif message == "reset":
        write_observation(slots, env.reset())
    else:
        write_observation(slots, env.load_state(message))
    return None


def _unless_error(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
