"""A game is minigrid's environment, move by move."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.constants import OBJECT_TO_IDX
from minigrid.envs.empty import EmptyEnv

from envs.game import make_game
from envs.levels import LEVELS, PAPER_LEVELS, LevelError, find_level
from envs.vector import make_vector_env
from helpers.same_game import DROP, PICK_UP, TOGGLE, Pair, follow_the_bot, meddle, play_both

# Boxes, keys, doors open, closed and locked, blocked ways, full hands, orders that can fail.
MEDDLED = (
    *("KeyInBox", "UnlockLocalDist", "BlockedUnlockPickup", "OpenDoorsOrderN4Debug"),
    *("PutNextS5N2Carrying", "MiniBossLevel", "PickupDistDebug", "KeyCorridorS3R3"),
)
EPISODES = 2000  # of every level, in the slow test


@pytest.mark.every(3)
@pytest.mark.parametrize("level", [*LEVELS][::4])
def test_a_few_episodes_of_every_level_are_the_same(level: str) -> None:
    # 40 steps suffice to meet objects; the tests below play to the end.
    play_both(level, n_episodes=4, seed=7, n_steps=40, whole=5)


@pytest.mark.every(3)
@pytest.mark.parametrize("level", PAPER_LEVELS)
def test_whole_episodes_are_the_same(level: str) -> None:
    play_both(level, n_episodes=2, seed=11, whole=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("level", LEVELS)
def test_many_episodes_of_every_level_are_the_same(level: str) -> None:
    play_both(level, EPISODES, seed=1000)
    pair = Pair(level)
    for seed in range(EPISODES // 20):
        pair.play(follow_the_bot(), seed)


@pytest.mark.every(4)
@pytest.mark.parametrize("level", [*PAPER_LEVELS, "Unlock", "UnlockLocal", "BossLevel"])
def test_the_bot_sees_the_same(level: str) -> None:
    pair = Pair(level)
    assert sum(pair.play(follow_the_bot(), seed, 100) for seed in range(3)) > 0


@settings(max_examples=100)
@given(
    st.sampled_from(MEDDLED),
    st.integers(0, 2**31 - 1),
    st.lists(st.sampled_from([0, 1, 2, 2, 2, PICK_UP, DROP, TOGGLE, 6]), max_size=60),
    st.booleans(),
)
def test_adversarial_actions_have_the_same_effect(level, seed, actions, guided) -> None:
    """Actions as drawn, or with things picked up and toggled wherever there are any."""
    pair = Pair(level)
    pair.reset(seed)
    choose = meddle(seed)
    for action in actions:
        if pair.step(choose(pair.plain) if guided else action):
            pair.reset(None)


def test_a_box_that_is_opened_shows_its_key() -> None:
    """The cell in front changes without anything being carried."""
    pair = Pair("KeyInBox")
    pair.reset(0)
    for env in (pair.plain.unwrapped, pair.game):
        box = next(cell for cell in env.grid.grid if cell is not None and cell.type == "box")
        env.agent_pos, env.agent_dir = (box.cur_pos[0] - 1, box.cur_pos[1]), 0
    in_front, in_hand = (3, 5, 0), (3, 6, 0)
    pair.step(TOGGLE)
    assert pair.game.gen_obs()["image"][in_front] == OBJECT_TO_IDX["key"]
    pair.step(PICK_UP)
    assert pair.game.gen_obs()["image"][in_hand] == OBJECT_TO_IDX["key"]
    pair.step(DROP)
    assert pair.game.gen_obs()["image"][in_front] == OBJECT_TO_IDX["key"]


def test_a_hand_that_is_full_from_the_start_is_seen_after_the_first_step() -> None:
    """So in minigrid: its first observation is taken before the object is handed over."""
    pair = Pair("PutNextS5N2Carrying")
    pair.reset(3)
    pair.step(6)
    assert pair.game.gen_obs()["image"][3, 6, 0] == OBJECT_TO_IDX[pair.game.obj_a.type]


def test_rejected_layouts_are_not_announced_and_a_game_can_be_drawn(capsys) -> None:
    game = make_game(LEVELS["UnblockPickup"], render_mode="rgb_array")
    for seed in range(5):
        game.reset(seed=seed)
    assert capsys.readouterr() == ("", "")
    np.testing.assert_array_equal(game.render(), game.get_frame())


class Endless(gymnasium.Env):
    """Minigrid's observations from another environment, without its limit of steps."""

    observation_space = EmptyEnv().observation_space
    action_space = gymnasium.spaces.Discrete(7)

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return self._seen(), {}

    def step(self, action: int) -> Any:
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 5, (7, 7, 3), np.uint8)
        return {"image": image, "direction": 0, "mission": "reach the exit"}


class Limited(Endless):
    max_steps = 3


class Blind(Limited):
    observation_space = gymnasium.spaces.Dict({"direction": gymnasium.spaces.Discrete(4)})


@pytest.mark.parametrize("max_steps", [None, 2])
def test_any_environment_with_the_observations_of_minigrid_is_played(max_steps) -> None:
    """Its episodes end at its limit or the given one, and its state can be saved."""
    given: Any = {"seed": 1, "max_steps": max_steps}
    envs = make_vector_env([f"{__name__}:Limited"], 1, **given)
    seen, ends = [envs.reset().image], []
    for _ in range(6):
        change = envs.step(np.zeros((1, 1), int))
        seen.append(change.observation.image)
        ends.append(change.truncated.item())
    assert ends == [n % (max_steps or 3) == 0 for n in range(1, 7)]
    other = make_vector_env([f"{__name__}:Limited"], 1, **given)
    np.testing.assert_array_equal(other.load_state(envs.state()).image, seen[-1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Blind", "its observation has no image and no mission; return a dictionary with them"),
        ("Endless", "its episodes have no limit; give it max_steps, or register it with"),
    ],
)
def test_unsuitable_environments_are_named(name: str, message: str) -> None:
    with pytest.raises(LevelError, match=message):
        make_game(find_level(f"{__name__}:{name}"))
