"""Vector environments on envpool, a much faster implementation of BabyAI in C++.

For equal states and actions in every level of the paper, observations, ends and rewards (in single
precision) equal minigrid's. Layouts come from another random generator, so seeds give other
episodes. Differences:

- Envpool truncates a mission that is fulfilled by the last possible action. Here it terminates, as
  in minigrid, because of its reward. A mission that *fails* by the last action stays truncated;
  only levels with strict or ordered missions can fail, none of the paper's.
- Episodes have no separate seeds, so evaluation needs minigrid, and states cannot be saved.

References:
    Weng et al., *EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine*,
    NeurIPS 2022, arXiv:2206.10558.
"""

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.interface import Observation, SimulationError, Transition, VectorEnv, slot_seed
from envs.levels import LEVELS, LevelError
from envs.local import SLOT, observation_of
from envs.vocabulary import encode


class PoolVectorEnv(VectorEnv):
    """Environments of envpool, a pool of N for each level; see `envs.vector.make_vector_env`.

    Raises:
        ImportError: If envpool is not installed.
        ValueError: If ``evaluation`` is set.
        LevelError: If a level is not one of BabyAI's.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        seed: int,
        evaluation: bool = False,
        first_slot: int = 0,
    ) -> None:
        super().__init__(levels, n_slots)
        if evaluation:
            raise ValueError(
                "backend 'envpool' cannot seed single episodes; evaluate with backend 'minigrid'"
            )
        if other := [level for level in self.levels if level not in LEVELS]:
            raise LevelError(
                f"backend 'envpool' has only BabyAI's levels, not '{other[0]}'; use backend "
                "'minigrid'"
            )
        try:
            self._envpool: Any = importlib.import_module("envpool")
        except ImportError as error:
            raise ImportError(
                f"backend 'envpool' needs the package envpool ({error}); install it with "
                "pip install envpool, or use backend 'minigrid'"
            ) from error
        self._seed, self._first_slot = seed, first_slot
        getaffinity = getattr(os, "sched_getaffinity", None)
        n_processors = len(getaffinity(0)) if getaffinity else os.cpu_count() or 1
        self._n_threads = max(1, n_processors // len(self.levels))
        self._missions = self._blank().mission
        self._pools: list[Any] = []

    def reset(self) -> Observation:
        numbers = range(self._first_slot, self._first_slot + self.n_slots)
        self._pools = [
            # Seeds apply only at construction; a later reset continues the random numbers.
            self._envpool.make_gymnasium(
                LEVELS[level].id,
                num_envs=self.n_slots,
                seed=[slot_seed(self._seed, level, number) for number in numbers],
                num_threads=self._n_threads,
            )
            for level in self.levels
        ]
        observation = self._blank()
        everyone = np.ones(self.n_slots, bool)
        for row, pool in enumerate(self._pools):
            self._show(observation, row, pool.reset()[0], everyone)
        observation.mission[:] = self._missions
        return observation

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Run one action in every environment; start new episodes after ends.

        Envpool starts the next episode in the next step, whose action it ignores. Here the
        environments that need it take that step at once.

        Raises:
            SimulationError: If `reset` was not called, or an earlier step was interrupted.
        """
        pools, self._pools = self._pools, []  # pools cannot continue after an interrupt
        if not pools:
            raise SimulationError("there are no episodes, or a step was interrupted: call reset")
        observation = self._blank()
        reward = np.empty(actions.shape, np.float32)
        terminated, truncated = np.empty(actions.shape, bool), np.empty(actions.shape, bool)
        # All pools run in parallel: actions are sent to all before the first result is read.
        for pool, row_actions in zip(pools, actions.astype(np.int32), strict=True):
            pool.send(row_actions)
        for row, pool in enumerate(pools):
            seen, reward[row], terminated[row], truncated[row], _ = pool.recv()
            observation.image[row], observation.direction[row] = seen["image"], seen["direction"]
        fulfilled_last = truncated & (reward > 0)
        terminated |= fulfilled_last
        truncated &= ~fulfilled_last
        ended = terminated | truncated
        rows = np.flatnonzero(ended.any(axis=1)).tolist()
        for row in rows:
            slots = np.flatnonzero(ended[row]).astype(np.int32)
            pools[row].send(np.zeros(len(slots), np.int32), slots)
        for row in rows:
            self._show(observation, row, pools[row].recv()[0], ended[row])
        observation.mission[:] = self._missions
        self._pools = pools
        return Transition(observation, reward, terminated, truncated)

    def close(self) -> None:
        self._pools = []

    def _blank(self) -> Observation:
        return observation_of(np.zeros((len(self.levels), self.n_slots), SLOT))

    def _show(
        self, observation: Observation, row: int, seen: dict[str, np.ndarray], begun: np.ndarray
    ) -> None:
        """Write the first observations of new episodes of one pool."""
        observation.image[row, begun] = seen["image"]
        observation.direction[row, begun] = seen["direction"]
        self._missions[row, begun] = [_tokens(text.tobytes()) for text in seen["mission"]]


@cache
def _tokens(mission: bytes) -> np.ndarray:
    return encode(mission.rstrip(b"\0").decode())
