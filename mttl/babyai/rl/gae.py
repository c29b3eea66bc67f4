"""Generalised advantage estimation: how much better an action was than the policy's average."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Keeps equal advantages at 0 instead of dividing 0 by 0.
SMALLEST_DEVIATION = 1e-8


def generalised_advantages(
    rewards: Float[Tensor, "S T N"],
    values: Float[Tensor, "S T N"],
    ends: Bool[Tensor, "S T N"],
    next_values: Float[Tensor, "T N"],
    *,
    discount: float,
    decay: float,
    bootstraps: Float[Tensor, "S T N"] | None = None,
) -> Float[Tensor, "S T N"]:
    r"""Return the advantage of every action of a rollout.

    .. math:: \delta_s = r_s + \gamma\,(1 - e_s)\,v_{s+1} - v_s, \qquad
              A_s = \delta_s + \gamma \lambda\,(1 - e_s)\,A_{s+1}, \qquad A_S = 0

    The returns that the critic learns are ``advantages + values``. By default an episode that ran
    out of time counts as one that ended, as in BabyAI's code: the reward falls with time, so that
    the limit is a part of the task. With ``bootstraps`` :math:`\gamma b_s` is added to
    :math:`\delta_s` where an episode ended: what the critic expected of its last observation.

    Args:
        rewards: Reward of the action of each step.
        values: What the critic expects of the observation of each step.
        ends: The action of this step ended an episode.
        next_values: What the critic expects of the observation after the last step.
        discount: :math:`\gamma`, from 0 to 1.
        decay: :math:`\lambda`, from 0 (one step of reward, then the critic) to 1 (all rewards).
        bootstraps: Value of the last observation of each truncated episode, at the step that ended
            it, and 0 at steps that terminated one. Other steps are not read.

    References:
        Schulman, Moritz, Levine, Jordan and Abbeel, *High-Dimensional Continuous Control Using
        Generalized Advantage Estimation*, ICLR 2016, arXiv:1506.02438, equation 16.
    """
    if bootstraps is None:
        bootstraps = torch.zeros_like(values)
    following = torch.cat([values[1:], next_values[None]])
    errors = rewards + discount * torch.where(ends, bootstraps, following) - values
    kept = discount * decay * (~ends).to(errors.dtype)
    advantages = torch.empty_like(errors)
    advantage = torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        advantage = errors[step] + kept[step] * advantage
        advantages[step] = advantage
    return advantages


def normalise_advantages(
    advantages: Float[Tensor, "S T N"], how: str = "none"
) -> Float[Tensor, "S T N"]:
    """Return advantages with mean 0 and standard deviation 1, or as they are.

    Rewards of BabyAI lie in [0, 1] at every level, so its code leaves advantages alone. Normalised
    by task, a level that is all but solved pulls as hard at shared parameters as one that is not.

    Args:
        advantages: Those of a whole rollout, before it is cut into minibatches.
        how: ``"none"``, ``"all"`` (one mean and deviation) or ``"task"`` (those of each task).

    Raises:
        ValueError: If ``how`` is something else.
    """
    if how == "none":
        return advantages
    if how not in ("all", "task"):
        raise ValueError(f"how ('{how}') must be 'none', 'all' or 'task'")
    dims = (0, 1, 2) if how == "all" else (0, 2)
    centred = advantages - advantages.mean(dims, keepdim=True)
    deviation = centred.square().mean(dims, keepdim=True).sqrt()
    return centred / (deviation + SMALLEST_DEVIATION)
