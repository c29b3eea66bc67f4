"""The same vector environments on envpool, which plays BabyAI in C++ and many times faster.

The rules are minigrid's: from the same state and for the same actions both give the same
observations and ends, and the same rewards to single precision, in every level of the paper. The
layouts are drawn by another random generator, so a seed names another episode than minigrid's;
their distributions agree in tests. (Of 40,000 episodes of each single room and 20,000
of each maze, 243 features were compared: the smallest p-value is 0.006, as chance has it. Tests of
both, with their power, are in ``tests/envs/test_pool_*.py``.) What differs:

- A mission fulfilled by the very last action counts as cut off in envpool. Here it terminates, as
  in minigrid: its reward tells it apart. A mission *failed* by the very last action has none and
  stays truncated; only levels with strict or ordered missions can fail, none of the paper's.
- Episodes have no seeds of their own, so evaluation needs minigrid, and states cannot be saved.

References:
    Weng et al., *EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine*,
    NeurIPS 2022, arXiv:2206.10558.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.errors import SimulationError
from envs.interface import VIEW, Observation, Transition, check_levels, slot_seed
from envs.levels import LEVELS
from envs.vocabulary import MISSION_LENGTH, encode


class PoolVectorEnv:
    """T levels × N slots of envpool's environments, one pool of N for each level; see `VectorEnv`.

    Args:
        levels: Names of T levels, each once.
        n_slots: N.
        seed: Of the run; see `envs.interface.slot_seed`.
        evaluation: Must be False: envpool cannot seed single episodes.
        first_slot: Number of the first slot.
        n_threads: Of each pool; None shares the processors out among the pools.

    Raises:
        ImportError: If envpool is not installed.
        LevelError: If a level is unknown or listed twice, or there is none.
        ValueError: If evaluation is asked for.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        seed: int,
        evaluation: bool = False,
        first_slot: int = 0,
        n_threads: int | None = None,
    ) -> None:
        if evaluation:
            raise ValueError(
                "backend 'envpool' cannot seed single episodes; evaluate with backend 'minigrid'"
            )
        self._envpool = _import_envpool()
        self.levels = check_levels(levels)
        self.n_slots = n_slots
        self._seeds = {
            level: [slot_seed(seed, level, first_slot + slot) for slot in range(n_slots)]
            for level in self.levels
        }
        self._n_threads = n_threads or max(1, _n_processors() // len(self.levels))
        self._tokens: dict[bytes, np.ndarray] = {}  # of every mission met so far
        self._missions = np.zeros((len(self.levels), n_slots, MISSION_LENGTH), np.uint8)
        self._pools: list[Any] = []
        self._why_not = "they have not begun: call reset first"

    def reset(self) -> Observation:
        """Begin again, from the seeds of the slots.

        Raises:
            SimulationError: If the environments are closed.
        """
        if self._why_not == _CLOSED:
            raise SimulationError(f"these environments cannot begin: {_CLOSED}")
        self._pools = [
            # A seed counts at construction only; a later reset goes on with the random numbers.
            self._envpool.make_gymnasium(
                LEVELS[level].id,
                num_envs=self.n_slots,
                seed=self._seeds[level],
                num_threads=self._n_threads,
            )
            for level in self.levels
        ]
        observation = self._blank()
        everyone = np.ones(self.n_slots, bool)
        for row, pool in enumerate(self._pools):
            self._show(observation, row, pool.reset()[0], everyone)
        observation.mission[:] = self._missions
        self._why_not = ""
        return observation

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Do one action in every environment; begin the next episode where one ended.

        Envpool itself begins the next episode with the step after, whose action it ignores. Here
        that step is taken at once, by the environments that need it.

        Raises:
            SimulationError: If the environments have not begun, are closed, or an earlier step was
                interrupted.
        """
        if self._why_not:
            raise SimulationError(f"these environments cannot step: {self._why_not}")
        self._why_not = "a step was interrupted: call reset"
        observation = self._blank()
        shape = (len(self.levels), self.n_slots)
        reward = np.empty(shape, np.float32)
        terminated, truncated = np.empty(shape, bool), np.empty(shape, bool)
        # All pools work at the same time: all get their actions before the first is read.
        for pool, row_actions in zip(self._pools, actions.astype(np.int32), strict=True):
            pool.send(row_actions)
        for row, pool in enumerate(self._pools):
            seen, reward[row], terminated[row], truncated[row], _ = pool.recv()
            observation.image[row], observation.direction[row] = seen["image"], seen["direction"]
        fulfilled_last = truncated & (reward > 0)
        terminated |= fulfilled_last
        truncated &= ~fulfilled_last
        final = None
        if truncated.any():
            final = Observation(
                observation.image[truncated],
                observation.direction[truncated],
                self._missions[truncated],
            )
        self._begin_again(observation, terminated | truncated)
        observation.mission[:] = self._missions
        self._why_not = ""
        return Transition(observation, reward, terminated, truncated, final)

    def state(self) -> bytes:
        """Not possible.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "envpool cannot save its environments; use backend 'minigrid' to go on exactly"
        )

    def load_state(self, state: bytes) -> Observation:
        """Not possible.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "envpool cannot restore environments; use backend 'minigrid' to go on exactly"
        )

    def close(self) -> None:
        """End the pools and their threads."""
        self._pools = []
        self._why_not = _CLOSED

    def _begin_again(self, observation: Observation, ended: np.ndarray) -> None:
        rows = np.flatnonzero(ended.any(axis=1)).tolist()
        for row in rows:
            slots = np.flatnonzero(ended[row]).astype(np.int32)
            self._pools[row].send(np.zeros(len(slots), np.int32), slots)
        for row in rows:
            self._show(observation, row, self._pools[row].recv()[0], ended[row])

    def _show(
        self, observation: Observation, row: int, seen: dict[str, np.ndarray], begun: np.ndarray
    ) -> None:
        """Write the first observations of the episodes that one pool has begun."""
        observation.image[row, begun] = seen["image"]
        observation.direction[row, begun] = seen["direction"]
        self._missions[row, begun] = [self._encode(text.tobytes()) for text in seen["mission"]]

    def _encode(self, text: bytes) -> np.ndarray:
        """Return the tokens of a mission in bytes; each is worked out once."""
        if text not in self._tokens:
            self._tokens[text] = encode(text.rstrip(b"\0").decode())
        return self._tokens[text]

    def _blank(self) -> Observation:
        shape = (len(self.levels), self.n_slots)
        return Observation(
            np.empty((*shape, VIEW, VIEW, 3), np.uint8),
            np.empty(shape, np.uint8),
            np.empty((*shape, MISSION_LENGTH), np.uint8),
        )


_CLOSED = "they are closed; make new ones"


def _import_envpool() -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise ImportError(
            f"backend 'envpool' needs the package envpool ({error}); install it with "
            "pip install envpool, or use backend 'minigrid'"
        ) from error


def _n_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
