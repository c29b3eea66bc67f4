"""Evaluation on fixed episodes."""

import gymnasium
import minigrid  # noqa: F401  registers the levels
import numpy as np

from envs.episodes import Episodes, Policy, run_episodes
from envs.interface import N_ACTIONS, Observation, slot_seed
from envs.levels import LEVELS
from envs.vector import make_vector_env

LEVEL_NAMES = ("GoToLocalS5N2", "PickupLoc", "OpenRedDoor")
N_EPISODES = 7


def choose(image: np.ndarray, direction: int, n_steps: int) -> int:
    """A policy without any sense that depends on all it sees and on what it remembers."""
    return (int(image.astype(int).sum()) + 3 * direction + 5 * n_steps) % N_ACTIONS


def make_policy() -> Policy:
    """The same for many slots: it counts steps, and forgets them where an episode begins."""
    n_steps = np.zeros(0)

    def policy(seen: Observation, begins: np.ndarray, alive: np.ndarray) -> np.ndarray:
        nonlocal n_steps
        n_steps = np.where(begins, 0, n_steps + 1 if n_steps.size else 0)
        actions = np.full(alive.shape, 99)  # where nobody plays, anything goes
        for where in zip(*np.nonzero(alive), strict=True):
            seen_there = seen.image[where], int(seen.direction[where])
            actions[where] = choose(*seen_there, int(n_steps[where]))
        return actions

    return policy


def run(n_slots: int) -> Episodes:
    env = make_vector_env(LEVEL_NAMES, n_slots, seed=1, evaluation=True)
    return run_episodes(env, make_policy(), N_EPISODES)


def test_episodes_are_those_of_minigrid_with_their_seeds() -> None:
    found = run(3)
    for row, level in enumerate(LEVEL_NAMES):
        env = gymnasium.make(LEVELS[level].id)
        for episode in range(N_EPISODES):
            seen, _ = env.reset(seed=slot_seed(1, level, episode, evaluation=True))
            n, reward, ended = 0, 0.0, False
            while not ended:
                action = choose(seen["image"], seen["direction"], n)
                seen, reward, terminated, truncated, _ = env.step(action)
                n, ended = n + 1, terminated or truncated
            assert found.steps[row, episode] == n
            assert found.reward[row, episode] == np.float32(reward)
            assert found.success[row, episode] == (reward > 0)
    assert 0 < found.success.mean() < 1
    for other in (run(1), run(10)):  # the number of slots changes nothing
        for name, part in vars(found).items():
            np.testing.assert_array_equal(getattr(other, name), part)


def test_a_failed_mission_is_no_success() -> None:
    """Picking up the wrong thing ends the episode of a strict level without reward."""
    env = make_vector_env(["PickupDistDebug"], 4, seed=0, evaluation=True)
    rng = np.random.default_rng(0)
    found = run_episodes(env, lambda _, __, alive: rng.integers(7, size=alive.shape), 20)
    failed = (found.steps < 49) & (found.reward == 0)
    assert failed.any()
    assert not found.success[failed].any()
