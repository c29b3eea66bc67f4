"""A vector environment in this process, one environment after the other."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.errors import LevelError, SimulationError
from envs.game import Game, make_game
from envs.interface import VIEW, Observation, Transition, check_levels, slot_seed
from envs.levels import LEVELS
from envs.saved_state import SavedState, generator_state, set_generator
from envs.vocabulary import MISSION_LENGTH, encode


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
        # How the episodes of these places began, and what was done since: all that a state needs.
        self._starts: list[dict[str, int] | None] = [None] * len(self._games)
        self._actions = [bytearray() for _ in self._games]
        self._open = True

    def reset(self) -> Observation:
        """Begin again, from the seeds of the slots.

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
            SimulationError: If an environment raises, or they are closed or have not begun.
        """
        self._require_begun()
        n = len(self._games)
        reward = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        last: list[tuple[Any, int, np.ndarray]] = []
        for place, action in enumerate(actions.ravel().tolist()):
            try:
                seen, reward[place], done, late, _ = self._games[place].step(action)
            except Exception as error:
                raise self._failure(place, error) from error
            self._actions[place].append(action)
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
        return SavedState(
            levels=list(self.levels),
            n_slots=self.n_slots,
            seed=self._seed,
            evaluation=self._evaluation,
            first_slot=self._first_slot,
            stride=self._stride,
            episodes=self._episodes.tolist(),
            starts=self._starts,
            actions=["".join(map(str, actions)) for actions in self._actions],
            seen=[self._digest(place) for place in range(len(self._games))],
        ).encode()

    def load_state(self, state: bytes) -> Observation:
        """Go on from a state: begin its episodes and play its actions again.

        Raises:
            ValueError: If the installed minigrid plays other episodes.
            SimulationError: If the environments are closed, or one raises.
        """
        self._require_open()
        saved = SavedState.decode(state)
        self._seed, self._evaluation = saved.seed, saved.evaluation
        self._first_slot, self._stride = saved.first_slot, saved.stride
        self._starts, self._episodes[:] = list(saved.starts), saved.episodes
        for place, actions in enumerate(saved.actions):
            self._play_again(place, bytes(map(int, actions)), saved.seen[place])
        return self._shaped(self._seen)

    def close(self) -> None:
        """Forget the environments."""
        self._games, self._open = [], False

    def _begin(self, place: int) -> None:
        """Begin the next episode of one environment."""
        self._episodes[place] += 1
        fresh = self._evaluation or self._episodes[place] == 0
        self._starts[place] = None if fresh else generator_state(self._games[place].np_random)
        self._reset(place)

    def _reset(self, place: int) -> None:
        """Begin the episode of one environment from its start."""
        start, game = self._starts[place], self._games[place]
        seed = self._slot_seed(place) if start is None else None
        self._actions[place] = bytearray()
        try:
            if start is not None:
                set_generator(game.np_random, start)
            seen, _ = game.reset(seed=seed)
            self._seen.mission[place] = encode(seen["mission"])
        except LevelError:
            self.close()
            raise
        except Exception as error:
            raise self._failure(place, error) from error
        self._show(place, seen)

    def _play_again(self, place: int, actions: bytes, digest: str) -> None:
        self._reset(place)
        ended = False
        for action in actions:
            if ended:  # an episode that has ended is not played on
                break
            try:
                seen, _, done, late, _ = self._games[place].step(action)
            except Exception as error:
                raise self._failure(place, error) from error
            ended = done or late
            self._show(place, seen)
        self._actions[place] = bytearray(actions)
        if ended or self._digest(place) != digest:
            level = self.levels[place // self.n_slots]
            raise ValueError(
                f"the state is of another episode of level '{level}' than this minigrid plays. "
                "Install the version of minigrid that the run began with, or start a new run"
            )

    def _digest(self, place: int) -> str:
        """Return a short hash of what is seen at a place."""
        seen = self._seen
        parts = (seen.image[place], seen.direction[place : place + 1], seen.mission[place])
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]

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
