"""Envpool behind our interface; it plays by minigrid's rules, side by side from the same states."""

import pickle
import sys
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from envs.demonstrations import _BoundedBot
from envs.interface import SimulationError
from envs.levels import PAPER_LEVELS, LevelError
from envs.pool import PoolVectorEnv
from envs.vocabulary import encode
from helpers.minigrid_twin import Twin

pytest.importorskip("envpool")

LEVEL_NAMES = ("PutNextLocalS5N3", "GoToLocalS5N2")
N_SLOTS = 3
# Envpool computes rewards, 1 - 0.9 n / n_max, in single precision; they lie between 0.1 and 1.
SINGLE_PRECISION = 2.0**-23


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
    assert transition.reward[0, 0] == pytest.approx(reward, abs=SINGLE_PRECISION)
    assert reward == pytest.approx(0.1)


def test_misuse_and_a_step_after_an_interrupted_one_are_told() -> None:
    env = make()
    action = random_actions(1)[0]
    with pytest.raises(SimulationError, match=r"there are no episodes, .*: call reset"):
        env.step(action)
    with pytest.raises(NotImplementedError, match=r"cannot be saved.* backend 'minigrid'"):
        env.state()
    first = env.reset()
    env._pools[1].recv = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        env.step(action)
    with pytest.raises(SimulationError, match="a step was interrupted: call reset"):
        env.step(action)
    assert pickle.dumps(env.reset()) == pickle.dumps(first)
    env.step(action)
    env.close()
    with pytest.raises(SimulationError, match="call reset"):
        env.step(action)


def test_what_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"cannot seed single episodes; evaluate with .*'mini"):
        make(evaluation=True)
    with pytest.raises(LevelError, match="unknown level 'GoToMars'"):
        make(levels=["GoToMars"])
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"pip install envpool, or use backend"):
        make()


@pytest.mark.parametrize(
    ("level", "n_steps"),
    [
        ("PutNextLocal", 150),
        ("GoToObjMaze", 100),
        *(pytest.param(level, 2500, marks=pytest.mark.slow) for level in PAPER_LEVELS),
    ],
)
def test_the_same_actions_have_the_same_effects(level: str, n_steps: int) -> None:
    """Everything is compared; in the slow form on 20,000 steps of each level of the paper."""
    rng = np.random.default_rng(0)
    env = PoolVectorEnv([level], 8, seed=0)
    seen = env.reset()
    pool: Any = env._pools[0]
    twins = [Twin(level, state) for state in pool.debug_states()]
    players = [Player(twin, rng) for twin in twins]
    counts = {"success": 0, "time": 0}
    for _ in range(n_steps):
        for slot, twin in enumerate(twins):
            np.testing.assert_array_equal(twin.look()["image"], seen.image[0, slot])
            assert twin.look()["direction"] == seen.direction[0, slot]
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
                twin.begin(pool.debug_states()[slot])
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
