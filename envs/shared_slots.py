"""Observations, actions and rewards of T × N slots, in memory that several processes share.

The memory has no name, only descriptors: the system frees it with the last process that has it,
whatever becomes of them, so that nothing can be left behind.
"""

import mmap
import os
import tempfile

import numpy as np

from envs.interface import VIEW, Observation, Transition
from envs.vocabulary import MISSION_LENGTH

_SEEN = [
    ("image", np.uint8, (VIEW, VIEW, 3)),
    ("direction", np.uint8),
    ("mission", np.uint8, (MISSION_LENGTH,)),
]
# One slot. `final` means something only where an episode was cut off.
_SLOT = np.dtype(
    [
        ("action", np.uint8),
        ("seen", _SEEN),
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("final", _SEEN),
    ],
    align=True,
)


def allocate_slots(n_levels: int, n_slots: int) -> int:
    """Return the descriptor of new memory for T × N slots."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("slots")
    else:
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, _SLOT.itemsize * n_levels * n_slots)
    return memory


def map_slots(memory: int, n_levels: int, n_slots: int) -> np.ndarray:
    """Return the slots (T, N) in that memory; the descriptor may be closed then."""
    return np.ndarray((n_levels, n_slots), _SLOT, buffer=mmap.mmap(memory, 0))


def write_observation(slots: np.ndarray, observation: Observation) -> None:
    """Put down what is seen in all of these slots."""
    for name, value in vars(observation).items():
        slots["seen"][name] = value


def write_transition(slots: np.ndarray, transition: Transition) -> None:
    """Put down what a step brought to all of these slots."""
    write_observation(slots, transition.observation)
    for name in ("reward", "terminated", "truncated"):
        slots[name] = getattr(transition, name)
    if transition.final is not None:
        for name, value in vars(transition.final).items():
            slots["final"][name][transition.truncated] = value


def read_observation(slots: np.ndarray) -> Observation:
    """Return a copy of what is seen."""
    return _copy(slots["seen"])


def read_transition(slots: np.ndarray) -> Transition:
    """Return a copy of what the last step brought."""
    truncated = slots["truncated"].copy()
    return Transition(
        read_observation(slots),
        slots["reward"].copy(),
        slots["terminated"].copy(),
        truncated,
        _copy(slots["final"][truncated]) if truncated.any() else None,
    )


def _copy(seen: np.ndarray) -> Observation:
    return Observation(*(seen[name].copy() for name in ("image", "direction", "mission")))
