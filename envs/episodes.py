"""Evaluation on fixed episodes, which are equal for all policies and numbers of slots."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int

from envs.interface import N_ACTIONS, Observation, VectorEnv

# Function of the observation, of whether it starts an episode (T, N), and of whether the slot still
# counts (T, N), that returns actions (T, N). Policies must reset their memory at starts.
Policy = Callable[
    [Observation, Bool[np.ndarray, "T N"], Bool[np.ndarray, "T N"]], Int[np.ndarray, "T N"]
]
IDLE = N_ACTIONS - 1


@dataclass(frozen=True)
class Episodes:
    """The outcomes of E episodes of each of T levels.

    Attributes:
        success: Whether the mission was fulfilled in time.
        steps: Number of actions until the end.
        reward: Reward, 1 - 0.9 n / n_max for success, else 0.
    """

    success: Bool[np.ndarray, "T E"]
    steps: Int[np.ndarray, "T E"]
    reward: Float32[np.ndarray, "T E"]


def run_episodes(
    env: VectorEnv, policy: Policy, n_episodes: int, on_episode: Callable[[], object] = lambda: None
) -> Episodes:
    """Return the outcomes of the first E episodes of every level.

    Slot n plays the episodes n, n + N, n + 2N, ..., and then idles, so the set of episodes does not
    depend on their lengths. The environments must be made with ``evaluation=True``, and are reset
    first. The policy's action for a slot must depend only on that slot.
    """
    n_levels, n_slots = len(env.levels), env.n_slots
    success = np.zeros((n_levels, n_episodes), bool)
    steps = np.zeros((n_levels, n_episodes), np.int64)
    reward = np.zeros((n_levels, n_episodes), np.float32)

    observation = env.reset()
    episode = np.tile(np.arange(n_slots), (n_levels, 1))  # current episode of each slot
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
