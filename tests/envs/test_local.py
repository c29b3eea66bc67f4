"""A vector environment is many of minigrid's, one after the other."""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np
import pytest

from envs.interface import Observation, SimulationError, slot_seed
from envs.levels import LEVELS
from envs.local import LocalVectorEnv
from envs.vocabulary import encode
from helpers.same_game import assert_same

LEVEL_NAMES = ("GoToLocalS5N2", "PutNextLocalS5N3", "OpenRedDoor")
N_SLOTS = 3


def make(**options: Any) -> LocalVectorEnv:
    arguments: dict[str, Any] = {"levels": LEVEL_NAMES, "n_slots": N_SLOTS, "seed": 4, **options}
    return LocalVectorEnv(**arguments)


def random_actions(n_steps: int, shape: tuple[int, int] = (3, N_SLOTS)) -> np.ndarray:
    return np.random.default_rng(0).integers(7, size=(n_steps, *shape))


def check_same(observation: Observation, place: tuple[int, ...], seen: dict[str, Any]) -> None:
    """Compare what is seen at a place with what minigrid shows."""
    np.testing.assert_array_equal(observation.image[place], seen["image"])
    assert observation.direction[place] == seen["direction"]
    np.testing.assert_array_equal(observation.mission[place], encode(seen["mission"]))


@pytest.mark.parametrize("evaluation", [False, True])
def test_slots_are_minigrid_environments_that_begin_again_by_themselves(evaluation: bool) -> None:
    env = make(evaluation=evaluation, first_slot=2)
    observation = env.reset()
    assert observation.image.shape == (3, N_SLOTS, 7, 7, 3)
    assert observation.direction.shape == (3, N_SLOTS)
    assert observation.mission.shape == (3, N_SLOTS, 72)
    transitions = [env.step(actions) for actions in random_actions(150)]
    assert any(transition.truncated.any() for transition in transitions)
    assert any(transition.terminated.any() for transition in transitions)
    for place in np.ndindex(3, N_SLOTS):
        level, number = LEVEL_NAMES[place[0]], 2 + place[1]
        single = gymnasium.make(LEVELS[level].id)
        seen, _ = single.reset(seed=slot_seed(4, level, number, evaluation))
        check_same(observation, place, seen)
        for actions, transition in zip(random_actions(150), transitions, strict=True):
            seen, reward, terminated, truncated, _ = single.step(actions[place])
            assert transition.reward[place] == np.float32(reward)
            assert transition.terminated[place] == terminated
            assert transition.truncated[place] == (truncated and not terminated)
            if terminated or truncated:
                number += N_SLOTS
                own = slot_seed(4, level, number, evaluation) if evaluation else None
                seen, _ = single.reset(seed=own)
            check_same(transition.observation, place, seen)


@pytest.mark.parametrize("evaluation", [False, True])
def test_parts_play_what_the_whole_plays(evaluation: bool) -> None:
    whole = make(evaluation=evaluation)
    common = {"evaluation": evaluation, "stride": N_SLOTS}
    parts = make(n_slots=2, **common), make(n_slots=1, first_slot=2, **common)
    images = [env.reset().image for env in (whole, *parts)]
    for actions in random_actions(120):
        np.testing.assert_array_equal(images[0], np.concatenate(images[1:], axis=1))
        shares = (whole, actions), (parts[0], actions[:, :2]), (parts[1], actions[:, 2:])
        images = [env.step(own).observation.image for env, own in shares]


@pytest.mark.parametrize("n_steps", [0, 33])
def test_going_on_from_a_state_is_not_having_stopped(n_steps: int) -> None:
    env = make(levels=(*LEVEL_NAMES[:2], "PutNextS5N2Carrying"))
    observation = env.reset()
    actions = random_actions(200)
    for action in actions[:n_steps]:
        observation = env.step(action).observation
    state = env.state()
    expected = [env.step(action) for action in actions[n_steps:]]
    other = make(levels=env.levels, seed=99)
    for resumed in (other, env):  # elsewhere, and back in time
        assert_same(resumed.load_state(state), observation)
        for action, transition in zip(actions[n_steps:], expected, strict=True):
            assert_same(resumed.step(action), transition)
    assert_same(other.reset(), env.reset())


def test_arrays_belong_to_the_caller() -> None:
    env, undisturbed = make(), make()
    seen, expected = env.reset(), undisturbed.reset()
    for actions in random_actions(80):
        assert_same(seen, expected)
        for part in vars(seen).values():
            part[:] = 255
        seen, expected = env.step(actions).observation, undisturbed.step(actions).observation


class Broken:
    """An environment that raises."""

    np_random = np.random.default_rng(0)

    def __init__(self, game: Any, where: str) -> None:
        self.game, self.where, self.unwrapped = game, where, game

    def step(self, action: int) -> Any:
        if self.where == "step":
            raise ZeroDivisionError("broken")
        return (*self.game.step(action)[:2], True, False, {})

    def reset(self, seed: int | None) -> Any:
        raise RecursionError("no layout")


@pytest.mark.parametrize(
    ("where", "cause"),
    [("step", "0 episodes .*: ZeroDivisionError: broken"), ("reset", "1 episodes .*: Recursion")],
)
def test_an_environment_that_raises_is_named(where: str, cause: str) -> None:
    env = make(first_slot=5)
    env.reset()
    game = env._games[1, 1]
    game.env = Broken(game.env, where)  # type: ignore[assignment]
    seed = slot_seed(4, "PutNextLocalS5N3", 6)
    message = f"level 'PutNextLocalS5N3', slot 6, {cause.replace('.*', f'after seed {seed}')}"
    with pytest.raises(SimulationError, match=message) as caught:
        env.step(random_actions(1)[0])
    assert isinstance(caught.value.__cause__, ZeroDivisionError | RecursionError)


def test_a_state_of_other_episodes_is_refused() -> None:
    env = make()
    env.reset()
    for actions in random_actions(5):
        env.step(actions)
    state = env.state()
    endless = [[{**slot, "actions": "6" * 1000} for slot in row] for row in state["slots"]]
    for change in ({"seed": 2}, {"slots": endless}):
        with pytest.raises(ValueError, match="another episode of level"):
            env.load_state(state | change)
