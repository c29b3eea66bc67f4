"""The bot plays an episode, or says why it does not."""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
import numpy as np
import pytest
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs import bot
from envs.bot import BotFailed, demonstrate
from envs.levels import LEVELS


@pytest.mark.parametrize(
    ("level", "seed"), [("PickupLoc", 0), ("PutNextLocal", 1), ("Synth", 2), ("BossLevel", 3)]
)
def test_a_demonstration_is_what_the_bot_does_in_minigrid(level: str, seed: int) -> None:
    demonstration = demonstrate(level, seed)
    env = gymnasium.make(LEVELS[level].id, disable_env_checker=True)
    seen, _ = env.reset(seed=seed)
    original = BabyAIBot(env)
    assert (demonstration.level, demonstration.seed) == (level, seed)
    assert demonstration.mission == seen["mission"]
    n_steps = len(demonstration.actions)
    reward: Any = 0
    assert demonstration.images.shape == (n_steps, 7, 7, 3)
    assert demonstration.directions.shape == (n_steps,)
    for step, action in enumerate(demonstration.actions):
        assert action == original.replan()
        np.testing.assert_array_equal(demonstration.images[step], seen["image"])
        assert demonstration.directions[step] == seen["direction"]
        seen, reward, terminated, _, _ = env.step(action)
        assert terminated == (step == n_steps - 1)
    assert reward > 0
    for array in (demonstration.images, demonstration.directions, demonstration.actions):
        assert array.dtype == np.uint8


def test_planning_for_ever_ends() -> None:
    with pytest.raises(BotFailed, match="it plans for ever at step 161"):
        demonstrate("Unlock", 63)


def test_giving_up_is_told_with_its_cause() -> None:
    with pytest.raises(BotFailed, match=r"it gives up at step \d+ \(AssertionError"):
        demonstrate("KeyInBox", 0)


def test_running_out_of_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot._BoundedBot, "replan", lambda self: 6)
    with pytest.raises(BotFailed, match="its 64 steps do not fulfil the mission"):
        demonstrate("GoToObj", 0)
