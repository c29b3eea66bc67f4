"""Proximal policy optimisation: learn from a rollout several times, but not far away from it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def action_log_probs(
    logits: Float[Tensor, "*frames A"], actions: Int[Tensor, "*frames"]
) -> Float[Tensor, "*frames"]:
    """Return the logarithm of the probability of each action taken."""
    return logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]


def ppo_loss(
    logits: Float[Tensor, "*frames A"],
    values: Float[Tensor, "*frames"],
    actions: Int[Tensor, "*frames"],
    old_log_probs: Float[Tensor, "*frames"],
    old_values: Float[Tensor, "*frames"],
    advantages: Float[Tensor, "*frames"],
    returns: Float[Tensor, "*frames"],
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    r"""Return the loss of actor and critic on some frames, and its terms.

    With :math:`\rho = \pi(a) / \pi_{old}(a)`, :math:`\epsilon` = ``clip``, and
    :math:`\bar v = v_{old} + \mathrm{clip}(v - v_{old}, \pm\epsilon)`, the mean over all frames of

    .. math:: -\min\bigl(\rho A,\; \mathrm{clip}(\rho, 1 \pm \epsilon)\, A\bigr)
              + c_v \max\bigl((v - R)^2, (\bar v - R)^2\bigr)
              - c_e\, \mathrm{H}(\pi)

    Every frame has the same weight, and so has every task: a batch has equally many frames of each.

    Args:
        logits: Of the policy as it is now, for the A actions; with any leading axes.
        values: What the critic expects now.
        actions: Those taken in the rollout.
        old_log_probs: Their log probabilities then.
        old_values: What the critic expected then.
        advantages: How much better than expected each action was.
        returns: What the critic should have expected.
        clip: How far the ratio may move from 1, and values from the old ones, before the gain is
            cut off. Values are in units of the (scaled) reward.
        value_coef: Weight :math:`c_v` of the critic's loss; there is no further factor of a half.
        entropy_coef: Weight :math:`c_e` of the entropy H, in nats.

    Returns:
        The loss, and without gradients ``policy_loss``, ``value_loss`` and ``entropy`` (all before
        weighting), ``approximate_kl`` from the old policy to this one (the mean of
        :math:`\rho - 1 - \log\rho`, which is never negative), and ``clip_fraction``, the fraction
        of frames whose ratio lies outside the range.

    References:
        Schulman, Wolski, Dhariwal, Radford and Klimov, *Proximal Policy Optimization Algorithms*,
        2017, arXiv:1707.06347, equations 7 and 9. The clipped value loss is that of its authors'
        code; settings for BabyAI are those of Hui et al., *BabyAI 1.1*, 2020, arXiv:2007.12770.
    """
    log_probs = logits.log_softmax(-1)
    log_ratio = log_probs.gather(-1, actions[..., None])[..., 0] - old_log_probs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages).mean()

    clipped_values = old_values + (values - old_values).clamp(-clip, clip)
    value_loss = torch.maximum(
        (values - returns).square(), (clipped_values - returns).square()
    ).mean()

    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    statistics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > clip).float().mean(),
    }
    return loss, {name: value.detach() for name, value in statistics.items()}
