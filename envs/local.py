"""A vector environment in this process, which steps its environments one after another."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from envs.game import make_game
from envs.interface import VIEW, Observation, SimulationError, Transition, VectorEnv, slot_seed
from envs.levels import find_level
from envs.vocabulary import MISSION_LENGTH, encode

Place = tuple[int, ...]  # of a slot: level, number
_SEEN = [
    ("image", np.uint8, (VIEW, VIEW, 3)),
    ("direction", np.uint8),
    ("mission", np.uint8, (MISSION_LENGTH,)),
]
# Input and output of a slot.
SLOT = np.dtype(
    [
        *[("action", np.uint8), ("seen", _SEEN)],
        *[("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_)],
    ],
    align=True,
)


def observation_of(slots: np.ndarray) -> Observation:
    """Return a copy of the observations in slots (T, N)."""
    return Observation(*(slots["seen"][name].copy() for name, *_ in _SEEN))


def transition_of(slots: np.ndarray) -> Transition:
    """Return a copy of the results of the last step."""
    outcome = (slots[name].copy() for name in ("reward", "terminated", "truncated"))
    return Transition(observation_of(slots), *outcome)


@dataclass
class _Game:
    """A game, and the parts of its state.

    Attributes:
        start: State of the random generator before the episode; None if it started from a seed.
        actions: Actions of the episode, a digit each.
    """

    env: Any
    episode: int = -1
    start: Any = None
    actions: str = ""


class LocalVectorEnv(VectorEnv):
    """Environments that step one after another; see `envs.vector.make_vector_env`.

    An episode ends after ``max_steps``, and at the limit of its level at the latest.

    If they are a part of a larger vector environment, ``stride`` is its N, the step between a
    slot's evaluation episodes, and ``slots`` (T, N) is the array of `SLOT` for input and output.
    """

    def __init__(
        self,
        levels: Sequence[str],
        n_slots: int,
        *,
        seed: int,
        evaluation: bool = False,
        first_slot: int = 0,
        max_steps: int | None = None,
        stride: int | None = None,
        slots: np.ndarray | None = None,
    ) -> None:
        super().__init__(levels, n_slots)
        self._numbers = {"seed": seed, "evaluation": evaluation, "first_slot": first_slot}
        self._numbers["stride"] = stride or n_slots
        self._max_steps = max_steps or math.inf
        shape = len(self.levels), n_slots
        self._slots = np.zeros(shape, SLOT) if slots is None else slots
        self._games = {
            place: _Game(make_game(find_level(self.levels[place[0]])))
            for place in np.ndindex(*shape)
        }

    def reset(self) -> Observation:
        for place, game in self._games.items():
            game.episode = -1
            self._begin(place)
        return observation_of(self._slots)

    def step(self, actions: Int[np.ndarray, "T N"]) -> Transition:
        self._slots["action"] = actions
        self.act()
        return transition_of(self._slots)

    def act(self) -> None:
        """Run the actions in the slots, and write the results into the slots."""
        slots = self._slots
        reward, terminated, truncated = (
            slots[name] for name in ("reward", "terminated", "truncated")
        )
        for (place, game), action in zip(
            self._games.items(), slots["action"].ravel().tolist(), strict=True
        ):
            seen, reward[place], done, late = self._play(place, action)
            game.actions += str(action)
            limit = min(self._max_steps, getattr(game.env.unwrapped, "max_steps", math.inf))
            late = late or len(game.actions) >= limit
            terminated[place], truncated[place] = done, late and not done
            if done or late:
                self._begin(place)
            else:
                self._show(place, seen)

    def state(self) -> dict[str, Any]:
        """Return the start of each slot's episode and the actions since then.

        This is sufficient, since environments are deterministic after the start of an episode. The
        state does not depend on the number of worker processes.
        """
        slots: list[list[dict[str, Any]]] = [[] for _ in self.levels]
        for place, game in self._games.items():
            saved = {"episode": game.episode, "start": game.start, "actions": game.actions}
            slots[place[0]].append(saved | {"seen": self._digest(place)})
        return {**self._numbers, "slots": slots}

    def load_state(self, state: dict[str, Any]) -> Observation:
        """Restore a state by replaying the actions of its episodes.

        Raises:
            ValueError: If the installed minigrid plays other episodes.
            SimulationError: If an environment raises.
        """
        self._numbers = {name: state[name] for name in self._numbers}
        for place, game in self._games.items():
            saved = state["slots"][place[0]][place[1]]
            game.episode, game.start = saved["episode"], saved["start"]
            self._reset(place)
            ended = False
            for action in saved["actions"]:
                if ended:
                    break
                seen, _, done, late = self._play(place, int(action))
                ended = done or late
                self._show(place, seen)
            game.actions = saved["actions"]
            if ended or self._digest(place) != saved["seen"]:
                raise ValueError(
                    "this version of minigrid generates another episode of level "
                    f"'{self.levels[place[0]]}' than the saved one. Install the version with which "
                    "the run started, or start a new run"
                )
        return observation_of(self._slots)

    def _begin(self, place: Place) -> None:
        """Start the next episode of one environment."""
        game = self._games[place]
        game.episode += 1
        fresh = self._numbers["evaluation"] or game.episode == 0
        game.start = None if fresh else game.env.np_random.bit_generator.state
        self._reset(place)

    def _reset(self, place: Place) -> None:
        """Start the current episode of one environment."""
        game = self._games[place]
        game.actions = ""
        try:
            if game.start is not None:
                game.env.np_random.bit_generator.state = game.start
            seen, _ = game.env.reset(seed=self._seed(place) if game.start is None else None)
            self._slots["seen"]["mission"][place] = encode(seen["mission"], self.levels[place[0]])
        except Exception as error:
            raise self._failure(place, error) from error
        self._show(place, seen)

    def _play(self, place: Place, action: int) -> tuple[dict[str, Any], Any, bool, bool]:
        try:
            return self._games[place].env.step(action)[:4]
        except Exception as error:
            raise self._failure(place, error) from error

    def _digest(self, place: Place) -> str:
        """Return a short hash of the observation of a slot."""
        seen = self._slots["seen"][place]
        parts = (seen[name].tobytes() for name, *_ in _SEEN)
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def _show(self, place: Place, seen: dict[str, Any]) -> None:
        shown = self._slots["seen"]
        shown["image"][place], shown["direction"][place] = seen["image"], seen["direction"]

    def _seed(self, place: Place) -> int:
        numbers, (level, number) = self._numbers, place
        number += numbers["first_slot"]
        if numbers["evaluation"]:
            number += numbers["stride"] * self._games[place].episode
        return slot_seed(numbers["seed"], self.levels[level], number, numbers["evaluation"])

    def _failure(self, place: Place, error: Exception) -> SimulationError:
        level, number = self.levels[place[0]], self._numbers["first_slot"] + place[1]
        later = 0 if self._numbers["evaluation"] else self._games[place].episode
        return SimulationError(
            f"level '{level}', slot {number}, {later} episodes after seed {self._seed(place)}: "
            f"{type(error).__name__}: {error}"
        )
