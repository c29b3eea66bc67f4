"""A state is plain data, and what is not a state is refused."""

import json
from typing import Any

import numpy as np
import pytest

from envs.levels import PAPER_LEVELS
from envs.local import LocalVectorEnv
from envs.saved_state import SavedState

LEVELS = ["GoToLocalS5N2", "PutNextS5N2Carrying"]


def begun(n_steps: int = 30, **options: Any) -> LocalVectorEnv:
    env = LocalVectorEnv(LEVELS, 3, seed=1, **options)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(n_steps):
        env.step(rng.integers(7, size=(2, 3)))
    return env


@pytest.mark.parametrize("level", PAPER_LEVELS[::6])
def test_every_level_goes_on_exactly(level: str) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(7, size=(300, 1, 2))
    env, other = LocalVectorEnv([level], 2, seed=1), LocalVectorEnv([level], 2, seed=2)
    env.reset()
    for action in actions[:150]:
        env.step(action)
    other.load_state(env.state())
    for action in actions[150:]:
        ours, theirs = env.step(action), other.step(action)
        np.testing.assert_array_equal(ours.observation.image, theirs.observation.image)
        np.testing.assert_array_equal(ours.observation.mission, theirs.observation.mission)
        np.testing.assert_array_equal(ours.reward, theirs.reward)
    assert env.state() == other.state()


def test_parts_join_to_the_whole() -> None:
    whole = SavedState.decode(begun().state())
    parts = whole.split([1, 2])
    assert [part.first_slot for part in parts] == [0, 1]
    assert SavedState.join(parts) == whole


def test_a_state_of_other_episodes_is_refused() -> None:
    env = begun(5)
    state = json.loads(env.state())
    for change in ({"seed": 2}, {"actions": ["6" * 100_000] * 6}):
        with pytest.raises(ValueError, match="is of another episode of level"):
            env.load_state(json.dumps(state | change).encode())
