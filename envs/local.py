"""A vector environment in this process, one environment after the other."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.errors import LevelError, SimulationError
from envs.game import Game, make_game
from envs.interface import VIEW, Observation, Transition, check_actions, check_levels, slot_seed
from envs.levels import LEVELS
from envs.saved_state import read_state
from envs.vocabulary import MISSION_LENGTH, encode

# What a state holds.
_SETTINGS = ("levels", "n_slots", "_seed", "_evaluation", "_first_slot", "_stride")
_STATE = (*_SETTINGS, "_games", "_episodes", "_seen")


class LocalVectorEnv:
    """T levels × N slots of environments that step one after the other; see `VectorEnv`.

    Args:
        levels: Names of T levels, each once.
        n_slots: N.
        seed: Of the run; see `envs.interface.slot_seed`.
        evaluation: Play the fixed episodes of evaluation: slot n plays those numbered n, n + N, ...
        first_slot: Number of the first slot.
        stride: Distance of the numbers of a slot's episodes of evaluation: N, unless these slots
            are a part of a larger vector environment.

    Raises:
        LevelError: If a level is unknown or listed twice, or there is none.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        seed: int,
        evaluation: bool = False,
        first_slot: int = 0,
        stride: int | None = None,
    ) -> None:
        self.levels = check_levels(levels)
        self.n_slots = n_slots
        self._seed, self._evaluation = seed, evaluation
        self._first_slot, self._stride = first_slot, stride or n_slots
        # Environments lie level after level, in one row of T × N; so do the arrays kept here.
        self._games: list[Game] = [
            make_game(LEVELS[level]) for level in self.levels for _ in range(n_slots)
        ]
        self._episodes = np.full(len(self._games), -1)  # number of each slot's episode
        self._seen = _blank(len(self._games))  # what is seen now
        self._open = True

    def reset(self) -> Observation:
        """Begin anew, from the seeds of the slots.

        Raises:
            LevelError: If a level has no step limit.
            SimulationError: If an environment raises, or they are closed.
        """
        self._require_open()
        self._episodes[:] = -1
        for place in range(len(self._games)):
            self._begin(place)
        return self._shaped(self._seen)

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        """Do one action in every environment; begin the next episode where one ended.

        Raises:
            TypeError: If the actions are not integers.
            ValueError: If their shape is not (T, N), or one is not from 0 to 6.
            SimulationError: If an environment raises, or they are closed or have not begun.
        """
        self._require_begun()
        check_actions(actions, len(self.levels), self.n_slots)
        n = len(self._games)
        reward = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        last: list[tuple[Any, int, np.ndarray]] = []
        for place, action in enumerate(actions.ravel().tolist()):
            try:
                seen, reward[place], done, late, _ = self._games[place].step(action)
            except Exception as error:
                raise self._failure(place, error) from error
            if done or late:
                terminated[place], truncated[place] = done, not done
                if not done:
                    mission = self._seen.mission[place].copy()
                    last.append((seen["image"], seen["direction"], mission))
                self._begin(place)
            else:
                self._show(place, seen)
        shape = (len(self.levels), self.n_slots)
        return Transition(
            self._shaped(self._seen),
            reward.reshape(shape),
            terminated.reshape(shape),
            truncated.reshape(shape),
            _stack(last) if last else None,
        )

    def state(self) -> bytes:
        """Return the environments with their random numbers, and what was last seen of them.

        Raises:
            SimulationError: If they are closed or have not begun.
        """
        self._require_begun()
        return pickle.dumps({name: getattr(self, name) for name in _STATE})

    def load_state(self, state: bytes) -> Observation:
        """Go on from a state; it is a pickle and must come from a trusted place.

        Raises:
            ValueError: If it was taken of other levels or another number of slots.
            SimulationError: If the environments are closed.
        """
        self._require_open()
        saved = read_state(state)
        for name in ("levels", "n_slots"):
            theirs, ours = saved[name], getattr(self, name)
            if theirs != ours:
                raise ValueError(f"the state has {name} {theirs}; these environments have {ours}")
        self.__dict__.update(saved)
        return self._shaped(self._seen)

    def close(self) -> None:
        """Forget the environments."""
        self._games, self._open = [], False

    def _begin(self, place: int) -> None:
        """Begin the next episode of one environment."""
        self._episodes[place] += 1
        seed = self._slot_seed(place)
        try:
            fresh = self._evaluation or self._episodes[place] == 0
            seen, _ = self._games[place].reset(seed=seed if fresh else None)
            self._seen.mission[place] = encode(seen["mission"])
        except LevelError:
            self.close()
            raise
        except Exception as error:
            raise self._failure(place, error) from error
        self._show(place, seen)

    def _show(self, place: int, seen: dict[str, Any]) -> None:
        self._seen.image[place] = seen["image"]
        self._seen.direction[place] = seen["direction"]

    def _slot_seed(self, place: int) -> int:
        level, slot = divmod(place, self.n_slots)
        number = self._first_slot + slot
        if self._evaluation:
            number += self._stride * int(self._episodes[place])
        return slot_seed(self._seed, self.levels[level], number, self._evaluation)

    def _failure(self, place: int, error: Exception) -> SimulationError:
        level, slot = divmod(place, self.n_slots)
        later = 0 if self._evaluation else self._episodes[place]
        message = (
            f"level '{self.levels[level]}', slot {self._first_slot + slot}, {later} episodes after "
            f"seed {self._slot_seed(place)}: {type(error).__name__}: {error}"
        )
        self.close()
        return SimulationError(message)

    def _require_open(self) -> None:
        if not self._open:
            raise SimulationError("the environments are closed; make new ones")

    def _require_begun(self) -> None:
        self._require_open()
        if (self._episodes < 0).any():
            raise SimulationError("the environments have not begun: call reset first")

    def _shaped(self, seen: Observation) -> Observation:
        """Return a copy with the axes T and N."""
        shape = (len(self.levels), self.n_slots)
        parts = (seen.image, seen.direction, seen.mission)
        return Observation(*(part.reshape(*shape, *part.shape[1:]).copy() for part in parts))


def _blank(n: int) -> Observation:
    return Observation(
        np.zeros((n, VIEW, VIEW, 3), np.uint8),
        np.zeros(n, np.uint8),
        np.zeros((n, MISSION_LENGTH), np.uint8),
    )


def _stack(seen: list[tuple[np.ndarray, int, np.ndarray]]) -> Observation:
    images, directions, missions = zip(*seen, strict=True)
    return Observation(np.stack(images), np.array(directions, np.uint8), np.stack(missions))
