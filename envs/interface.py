"""What every vector environment takes and returns: many environments of many levels at once."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8

from envs.levels import LevelError, find_level

N_ACTIONS = 7  # left, right, forward, pick up, drop, toggle, done
VIEW = 7  # cells along each side of what an agent sees


class SimulationError(RuntimeError):
    """An environment raised or its process died; the message names level, slot, seed and cause."""


@dataclass(frozen=True)
class Observation:
    """What the agents see, for T levels with N environments (slots) each.

    Attributes:
        image: Type, colour and door state of each cell in view, columns first.
        direction: Where the agent looks: 0 right, 1 down, 2 left, 3 up.
        mission: Tokens, see `envs.vocabulary`.
    """

    image: UInt8[np.ndarray, "*T_N 7 7 3"]
    direction: UInt8[np.ndarray, "*T_N"]
    mission: UInt8[np.ndarray, "*T_N M"]


@dataclass(frozen=True)
class Transition:
    """What one step of every environment brings.

    Attributes:
        observation: After the step; where an episode ended, the first one of the next.
        reward: 1 - 0.9 n / n_max where a mission was fulfilled in n of at most n_max steps, else 0.
        terminated: The mission was fulfilled or failed.
        truncated: The time is up; never both.
    """

    observation: Observation
    reward: Float32[np.ndarray, "T N"]
    terminated: Bool[np.ndarray, "T N"]
    truncated: Bool[np.ndarray, "T N"]


class VectorEnv(ABC):
    """T levels × N slots of environments; arrays it returns belong to the caller.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
        SimulationError: By methods, if an environment raises, or a worker dies.
    """

    def __init__(self, levels: Sequence[str], n_slots: int) -> None:
        self.levels = check_levels(levels)
        self.n_slots = n_slots

    @abstractmethod
    def reset(self) -> Observation:
        """Begin again, from the seeds of the slots."""

    @abstractmethod
    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Do one action, from 0 to 6, in every environment; begin the next episode after an end."""

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly, as plain data, or a `NotImplementedError`."""
        raise NotImplementedError("these environments cannot be saved: use backend 'minigrid'")

    def load_state(self, state: dict[str, Any]) -> Observation:
        """Go on from a state; returns the current observations."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free what the environments hold."""


def slot_seed(seed: int, level: str, slot: int, evaluation: bool = False) -> int:
    """Return the seed of one slot, or of an episode of evaluation, the same on every machine.

    Slots and episodes of one level never share a seed. Training and evaluation never do either:
    training seeds lie below 2^30, evaluation seeds from 2^30 to 2^31 - 1.
    """
    digest = hashlib.sha256(f"{seed} {level} {evaluation}".encode()).digest()
    first = int.from_bytes(digest[:8], "little")
    return (first + slot) % 2**30 + 2**30 * evaluation


def check_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple.

    Raises:
        LevelError: If one is unknown or listed twice, or there is none.
    """
    names = tuple(find_level(name).name for name in levels)
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        none = "no level given; name at least one of envs.levels.LEVELS."
        raise LevelError(f"level '{twice[0]}' is listed twice" if twice else none)
    return names
