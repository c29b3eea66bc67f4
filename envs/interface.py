"""The interface of vector environments: many environments of many levels that step together."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8

from envs.levels import LevelError, find_level

N_ACTIONS = 7  # left, right, forward, pick up, drop, toggle, done
VIEW = 7  # side of the agent's view, in cells


class SimulationError(RuntimeError):
    """Raised if an environment fails or its process dies, with level, slot, seed and cause."""


@dataclass(frozen=True)
class Observation:
    """The observations of T levels with N environments (slots) each.

    Attributes:
        image: Type, colour and door state of each cell in view, columns first.
        direction: Direction of the agent: 0 right, 1 down, 2 left, 3 up.
        mission: Tokens of the mission, see `envs.vocabulary`.
    """

    image: UInt8[np.ndarray, "*T_N 7 7 3"]
    direction: UInt8[np.ndarray, "*T_N"]
    mission: UInt8[np.ndarray, "*T_N M"]


@dataclass(frozen=True)
class Transition:
    """The result of one step of every environment.

    Attributes:
        observation: Observation after the step; after an end, the first one of the next episode.
        reward: Reward, 1 - 0.9 n / n_max for a mission fulfilled in n of n_max steps, else 0.
        terminated: Whether the mission was fulfilled or failed.
        truncated: Whether the time ran out; never together with ``terminated``.
    """

    observation: Observation
    reward: Float32[np.ndarray, "T N"]
    terminated: Bool[np.ndarray, "T N"]
    truncated: Bool[np.ndarray, "T N"]


class VectorEnv(ABC):
    """T levels × N slots of environments; callers may change the returned arrays.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
        SimulationError: In methods, if an environment raises, or a worker dies.
    """

    def __init__(self, levels: Sequence[str], n_slots: int) -> None:
        self.levels = check_levels(levels)
        self.n_slots = n_slots

    @abstractmethod
    def reset(self) -> Observation:
        """Start all environments from the seeds of their slots."""

    @abstractmethod
    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Run one action, from 0 to 6, in every environment; start new episodes after ends."""

    def state(self) -> dict[str, Any]:
        """Return the exact state as plain data, or raise NotImplementedError."""
        raise NotImplementedError("these environments cannot be saved: use backend 'minigrid'")

    def load_state(self, state: dict[str, Any]) -> Observation:
        """Restore a state, and return the current observations."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most need nothing
        """Release the resources of the environments."""


def slot_seed(seed: int, level: str, slot: int, evaluation: bool = False) -> int:
    """Return the seed of a slot, or of an evaluation episode, equal on every machine.

    Seeds of a level are distinct. Training seeds are below 2^30, evaluation seeds from 2^30 to
    2^31 - 1.
    """
    digest = hashlib.sha256(f"{seed} {level} {evaluation}".encode()).digest()
    first = int.from_bytes(digest[:8], "little")
    return (first + slot) % 2**30 + 2**30 * evaluation


def check_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of levels; LevelError if one is unknown or repeated, or there is none."""
    names = tuple(find_level(name).name for name in levels)
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        none = "no level given; name at least one of envs.levels.LEVELS."
        raise LevelError(f"level '{twice[0]}' is listed twice" if twice else none)
    return names
