"""Generalised advantage estimation: how much better an action was than the policy's average."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def generalised_advantages(
    rewards: Float[Tensor, "S T N"],
    values: Float[Tensor, "S T N"],
    ends: Bool[Tensor, "S T N"],
    next_values: Float[Tensor, "T N"],
    *,
    discount: float,
    decay: float,
) -> Float[Tensor, "S T N"]:
    r"""Return the advantage of every action of a rollout.

    .. math:: \delta_s = r_s + \gamma\,(1 - e_s)\,v_{s+1} - v_s, \qquad
              A_s = \delta_s + \gamma \lambda\,(1 - e_s)\,A_{s+1}, \qquad A_S = 0

    The returns that the critic learns are ``advantages + values``. An episode that ran out of time
    counts as one that ended, as in BabyAI's code: the reward falls with time, so that the limit is
    a part of the task.

    Args:
        rewards: Reward of the action of each step.
        values: What the critic expects of the observation of each step.
        ends: The action of this step ended an episode.
        next_values: What the critic expects of the observation after the last step.
        discount: :math:`\gamma`, from 0 to 1.
        decay: :math:`\lambda`, from 0 (one step of reward, then the critic) to 1 (all rewards).

    References:
        Schulman, Moritz, Levine, Jordan and Abbeel, *High-Dimensional Continuous Control Using
        Generalized Advantage Estimation*, ICLR 2016, arXiv:1506.02438, equation 16.
    """
    following = torch.cat([values[1:], next_values[None]])
    errors = rewards + discount * following.masked_fill(ends, 0) - values
    kept = discount * decay * (~ends).to(errors.dtype)
    advantages = torch.empty_like(errors)
    advantage = torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        advantage = errors[step] + kept[step] * advantage
        advantages[step] = advantage
    return advantages
