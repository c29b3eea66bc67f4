"""Play one level twice at once, with minigrid and with ours, and compare all there is to see."""

from collections.abc import Callable
from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np

from envs.demonstrations import _BoundedBot
from envs.game import Game, make_game
from envs.interface import Observation, Transition
from envs.levels import LEVELS

PICK_UP, DROP, TOGGLE = 3, 4, 5
N_ACTIONS = 7

# Chooses an action from minigrid's environment.
Choose = Callable[[Any], int]


class BotGivesUp(Exception):
    """The bot has no more ideas, or too many."""


def play_at_random(seed: int) -> Choose:
    """Choose any action."""
    rng = np.random.default_rng(seed)
    return lambda plain: int(rng.integers(N_ACTIONS))


def meddle(seed: int) -> Choose:
    """Pick up, drop and toggle whatever stands in the way, and put things down anywhere."""
    rng = np.random.default_rng(seed)

    def choose(plain: Any) -> int:
        cell = plain.unwrapped.grid.get(*plain.unwrapped.front_pos)
        if cell is None:
            return int(rng.choice([0, 1, 2, 2, 2, DROP]))
        if cell.type == "wall":
            return int(rng.choice([0, 1, DROP, TOGGLE]))
        return int(rng.choice([0, 1, 2, 2, PICK_UP, PICK_UP, DROP, TOGGLE, TOGGLE]))

    return choose


def follow_the_bot() -> Choose:
    """Do what the bot does; a new one for every episode."""
    bot: Any = None

    def choose(plain: Any) -> int:
        nonlocal bot
        if plain.unwrapped.step_count == 0:
            bot = _BoundedBot(plain)
        try:
            return int(bot.replan())
        except Exception as error:  # it plans for ever, or trips over its own mistakes
            raise BotGivesUp from error

    return choose


class Pair:
    """Minigrid's environment of a level, as gymnasium makes it, and ours."""

    def __init__(self, level: str) -> None:
        self.plain = gymnasium.make(LEVELS[level].id)
        self.game: Game = make_game(LEVELS[level])

    def reset(self, seed: int | None) -> None:
        theirs, ours = self.plain.reset(seed=seed), self.game.reset(seed=seed)
        _compare(theirs[0], ours[0])
        assert theirs[1] == ours[1]

    def step(self, action: int) -> bool:
        """Return whether the episode ended."""
        theirs, ours = self.plain.step(action), self.game.step(action)
        _compare(theirs[0], ours[0])
        assert theirs[1:] == ours[1:]
        return bool(theirs[2] or theirs[3])

    def play(self, choose: Choose, seed: int | None, n_steps: int | None = None) -> int:
        """Play one episode, or its first steps, and return how many there were."""
        self.reset(seed)
        n = 0
        ended = False
        while not ended and n != n_steps:
            try:
                action = choose(self.plain)
            except BotGivesUp:
                break
            ended = self.step(action)
            n += 1
        return n


def play_both(
    level: str, n_episodes: int, seed: int, *, n_steps: int = 100, whole: int = 10
) -> int:
    """Play episodes of a level, by turns at random and meddling, and return their steps."""
    pair = Pair(level)
    choices = play_at_random(seed), meddle(seed)
    total = 0
    for episode in range(n_episodes):
        total += pair.play(
            choices[episode % 2],
            seed + episode if episode % 4 < 2 else None,
            None if episode % whole == 0 else n_steps,
        )
    return total


def _compare(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert theirs.keys() == ours.keys()
    assert theirs["image"].dtype == ours["image"].dtype
    assert np.array_equal(theirs["image"], ours["image"])
    assert theirs["direction"] == ours["direction"]
    assert theirs["mission"] == ours["mission"]


def assert_same(a: Any, b: Any) -> None:
    """Compare observations or transitions, part by part."""
    if a is None or b is None:
        assert a is b
    elif isinstance(a, Observation | Transition):
        for name, part in vars(a).items():
            assert_same(part, getattr(b, name))
    else:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
