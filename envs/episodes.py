"""Evaluation on fixed episodes: the same for every policy, and for any number of slots."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int

from envs.interface import N_ACTIONS, Observation, VectorEnv

# Maps what is seen, which episodes begin with it (T, N), and which slots still count (T, N), to
# the actions (T, N). Where an episode begins, a policy with memory must forget.
Policy = Callable[
    [Observation, Bool[np.ndarray, "T N"], Bool[np.ndarray, "T N"]], Int[np.ndarray, "T N"]
]
IDLE = N_ACTIONS - 1


@dataclass(frozen=True)
class Episodes:
    """How E episodes of each of T levels went.

    Attributes:
        success: The mission was fulfilled in time.
        steps: Actions until the end.
        reward: 1 - 0.9 n / n_max for success, else 0.
    """

    success: Bool[np.ndarray, "T E"]
    steps: Int[np.ndarray, "T E"]
    reward: Float32[np.ndarray, "T E"]


def run_episodes(
    env: VectorEnv, policy: Policy, n_episodes: int, on_episode: Callable[[], object] = lambda: None
) -> Episodes:
    """Play the first E episodes of every level.

    Slot n plays the episodes n, n + N, n + 2N, ... one after the other: which episodes count does
    not depend on how long they take. A slot that has played its share idles. The environments are
    made with ``evaluation=True``, and reset first. What the policy chooses for a slot must depend
    on that slot alone.
    """
    n_levels, n_slots = len(env.levels), env.n_slots
    success = np.zeros((n_levels, n_episodes), bool)
    steps = np.zeros((n_levels, n_episodes), np.int64)
    reward = np.zeros((n_levels, n_episodes), np.float32)

    observation = env.reset()
    episode = np.tile(np.arange(n_slots), (n_levels, 1))  # that each slot plays
    taken = np.zeros((n_levels, n_slots), np.int64)
    while (alive := episode < n_episodes).any():
        actions = np.where(alive, policy(observation, taken == 0, alive), IDLE)
        transition = env.step(actions)
        observation = transition.observation
        taken += 1
        ended = transition.terminated | transition.truncated
        for level, slot in np.argwhere(ended & alive):
            place = level, episode[level, slot]
            reward[place] = transition.reward[level, slot]
            success[place] = transition.terminated[level, slot] and reward[place] > 0
            steps[place] = taken[level, slot]
            on_episode()
        taken[ended] = 0
        episode[ended] += n_slots
    return Episodes(success, steps, reward)
