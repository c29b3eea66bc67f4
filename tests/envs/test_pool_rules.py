"""Envpool plays by minigrid's rules: both step side by side from the same states."""

from typing import Any

import numpy as np
import pytest

from envs.bot import _BoundedBot
from envs.levels import PAPER_LEVELS
from envs.pool import PoolVectorEnv
from envs.vocabulary import encode
from helpers.minigrid_twin import Twin

pytest.importorskip("envpool")

SLOW = pytest.mark.slow
# Envpool computes rewards, 1 - 0.9 n / n_max, in single precision; they lie between 0.1 and 1.
SINGLE_PRECISION = 2.0**-23


@pytest.mark.parametrize(
    ("level", "n_steps"),
    [
        ("PutNextLocal", 150),
        ("GoToObjMaze", 100),
        *(pytest.param(level, 2500, marks=SLOW) for level in PAPER_LEVELS),
    ],
)
def test_the_same_actions_have_the_same_effects(level: str, n_steps: int) -> None:
    """Everything is compared; in the slow form on 20,000 steps of each level of the paper."""
    rng = np.random.default_rng(0)
    env = PoolVectorEnv([level], 8, seed=0)
    pool: Any = None

    def states() -> list[Any]:
        return pool.debug_states()

    seen = env.reset()
    (pool,) = env._pools
    twins = [Twin(level, state) for state in states()]
    players = [Player(twin, rng) for twin in twins]
    counts = {"success": 0, "time": 0}
    for _ in range(n_steps):
        for slot, twin in enumerate(twins):
            assert_sees(twin.look(), seen.image[0, slot], seen.direction[0, slot])
            np.testing.assert_array_equal(encode(twin.inner.mission), seen.mission[0, slot])
        actions = [player.choose() for player in players]
        transition = env.step(np.array([actions]))
        for slot, (twin, action) in enumerate(zip(twins, actions, strict=True)):
            _, reward, terminated, truncated = twin.step(action)
            assert transition.reward[0, slot] == pytest.approx(reward, abs=SINGLE_PRECISION)
            assert transition.terminated[0, slot] == terminated
            assert transition.truncated[0, slot] == truncated
            if terminated or truncated:
                counts["success" if reward else "time"] += 1
                twin.begin(states()[slot])
                players[slot] = Player(twin, rng)
        seen = transition.observation
    if n_steps > 1000:
        assert min(counts.values()) > 10


class Player:
    """Follows the bot, with more or less mischief, or plays at random from some moment on."""

    def __init__(self, twin: Twin, rng: np.random.Generator) -> None:
        self.rng = rng
        self.bot: Any = _BoundedBot(twin.env)
        # The bot is made for its own plans; after an action of ours it is asked no more.
        self.mischief = rng.choice([0, 0.02, 0.1, 1])

    def choose(self) -> int:
        if self.bot is not None and self.rng.random() >= self.mischief:
            return int(self.bot.replan())
        self.bot = None
        # Objects are handled more often than by chance.
        return int(self.rng.choice([0, 1, 2, 2, 2, 3, 4, 5, 6]))


def assert_sees(seen: dict[str, Any], image: np.ndarray, direction: int) -> None:
    np.testing.assert_array_equal(seen["image"], image)
    assert seen["direction"] == direction
