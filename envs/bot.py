"""One demonstration: minigrid's bot, which sees the whole mission at work, plays one episode.

The bot is a planner with a stack of goals, the one of the BabyAI paper. It has two flaws: it takes
some layouts for unsolvable, and in a few it plans for ever (in 2 % of those of "Unlock"). Planning
is therefore bounded, by counting its steps: a clock would make results depend on the machine.

References:
    Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
    Language Learning*, ICLR 2019, arXiv:1810.08272, section 3.4.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs.game import make_game
from envs.levels import find_level

# Looks at the stack per action. It takes 9 at most in thousands of actions of the levels that the
# bot solves, "BossLevel" among them; 100 take half a second in the largest.
MOST_PLANNING = 100


class BotFailed(Exception):
    """The bot did not fulfil the mission; the message says why."""


@dataclass(frozen=True)
class Demonstration:
    """One successful episode of S steps.

    Attributes:
        seed: ``reset(seed=seed)`` begins the episode.
        images: What the agent saw before each action.
        directions: Where it looked then: 0 right, 1 down, 2 left, 3 up.
        actions: What it did; the last one fulfilled the mission.
    """

    level: str
    seed: int
    mission: str
    images: UInt8[np.ndarray, "S 7 7 3"]
    directions: UInt8[np.ndarray, "S"]
    actions: UInt8[np.ndarray, "S"]


def demonstrate(level: str, seed: int) -> Demonstration:
    """Let the bot play one episode.

    Raises:
        LevelError: If there is no such level.
        BotFailed: If the bot gives up, plans for too long, or runs out of time.
    """
    env = make_game(find_level(level))
    seen, _ = env.reset(seed=seed)
    bot = _BoundedBot(env)
    images, directions, actions = [], [], []
    terminated = truncated = False
    reward: Any = 0
    while not (terminated or truncated):
        try:
            action = int(bot.replan())
        except _PlannedTooLong:
            raise BotFailed(f"it plans for ever at step {len(actions) + 1}") from None
        # The bot states its assumptions as assertions, and trips over others where they fail.
        except Exception as error:
            cause = " ".join([type(error).__name__, *str(error).split()])
            raise BotFailed(f"it gives up at step {len(actions) + 1} ({cause})") from error
        images.append(seen["image"])
        directions.append(seen["direction"])
        actions.append(action)
        seen, reward, terminated, truncated, _ = env.step(action)
    if not (terminated and reward > 0):
        raise BotFailed(f"its {len(actions)} steps do not fulfil the mission")
    return Demonstration(
        level,
        seed,
        env.mission,
        np.stack(images),
        np.array(directions, np.uint8),
        np.array(actions, np.uint8),
    )


class _PlannedTooLong(Exception):
    pass


class _BoundedBot(BabyAIBot):
    """The bot, with an end to the planning of one action."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.stack = self._counted = _Stack(self.stack)

    def replan(self, action_taken: Any = None) -> Any:
        self._counted.n_looks = 0
        return super().replan(action_taken)


class _Stack(list):
    """Counts how often the bot looks at its next goal, which it does once per step of planning."""

    n_looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.n_looks += 1
        if self.n_looks > MOST_PLANNING:
            raise _PlannedTooLong
        return super().__getitem__(place)
