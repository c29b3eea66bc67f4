"""Envpool behind our interface."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest

from envs.bot import _BoundedBot
from envs.errors import LevelError, SimulationError
from envs.pool import PoolVectorEnv
from envs.vocabulary import encode
from helpers.minigrid_twin import Twin

pytest.importorskip("envpool")

LEVEL_NAMES = ("PutNextLocalS5N3", "GoToLocalS5N2")
N_SLOTS = 3


def make(**options: Any) -> PoolVectorEnv:
    settings: dict[str, Any] = {"levels": LEVEL_NAMES, "n_slots": N_SLOTS, "seed": 4, **options}
    return PoolVectorEnv(**settings)


def random_actions(n_steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(7, size=(n_steps, len(LEVEL_NAMES), N_SLOTS))


def test_seeds_decide_what_is_played() -> None:
    env = make()
    first = env.reset()
    steps = [env.step(actions) for actions in random_actions(60)]
    for other in (env, make()):
        assert pickle.dumps(other.reset()) == pickle.dumps(first)
        for actions, transition in zip(random_actions(60), steps, strict=True):
            assert pickle.dumps(other.step(actions)) == pickle.dumps(transition)
    assert (make(seed=5).reset().image != first.image).any()
    # Slots have numbers; these two ranks have one of them in common.
    np.testing.assert_array_equal(make(first_slot=2).reset().image[:, 0], first.image[:, 2])


def test_missions_change_with_episodes_and_only_with_them() -> None:
    env = make()
    seen = env.reset()
    n_truncated = 0
    for actions in random_actions(200):
        missions, transition = seen.mission, env.step(actions)
        seen, truncated = transition.observation, transition.truncated
        assert not (truncated & transition.terminated).any()
        n_truncated += truncated.sum()
        ended = truncated | transition.terminated
        assert ended[(missions != seen.mission).any(-1)].all()
        for row, pool in enumerate(env._pools):
            for slot, state in enumerate(pool.debug_states()):
                np.testing.assert_array_equal(seen.mission[row, slot], encode(state.mission))
    assert n_truncated > 5


def test_success_with_the_last_action_is_success() -> None:
    env = make(levels=["GoToObj"], n_slots=1)
    env.reset()
    twin = Twin("GoToObj", env._pools[0].debug_states()[0])
    start = env._pools[0].debug_states()[0]
    bot, plan = _BoundedBot(twin.env), []
    while True:
        plan.append(int(bot.replan()))
        if twin.step(plan[-1])[2]:
            break
    idle = [6] * (64 - len(plan))
    twin.begin(start)
    for action in [*plan[:-1], *idle, plan[-1]]:
        transition = env.step(np.array([[action]]))
        _, reward, terminated, truncated = twin.step(action)
    assert (terminated, truncated) == (True, False)  # that is how minigrid has it
    assert transition.terminated.all()
    assert not transition.truncated.any()
    # Envpool computes 1 - 0.9 in single precision.
    assert transition.reward[0, 0] == pytest.approx(reward, abs=2.0**-23)
    assert reward == pytest.approx(0.1)


def test_misuse_and_a_step_after_an_interrupted_one_are_told() -> None:
    env = make()
    action = random_actions(1)[0]
    with pytest.raises(SimulationError, match=r"no episodes, .*: call reset first"):
        env.step(action)
    with pytest.raises(NotImplementedError, match=r"cannot be saved.* backend 'minigrid'"):
        env.state()
    with pytest.raises(NotImplementedError, match=r"cannot be restored.* backend 'minigrid'"):
        env.load_state({})
    first = env.reset()
    env._pools[1].recv = interrupt
    with pytest.raises(KeyboardInterrupt):
        env.step(action)
    with pytest.raises(SimulationError, match="an interrupted step: call reset first"):
        env.step(action)
    assert pickle.dumps(env.reset()) == pickle.dumps(first)
    env.step(action)
    env.close()
    with pytest.raises(SimulationError, match="call reset"):
        env.step(action)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"cannot seed single episodes; evaluate with .*'minigrid'"
    ):
        make(evaluation=True)
    with pytest.raises(LevelError, match="unknown level 'GoToMars'"):
        make(levels=["GoToMars"])
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"pip install envpool, or use backend"):
        make()
