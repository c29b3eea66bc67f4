"""Generalised advantages, and the losses of PPO and behaviour cloning."""

import torch
from jaxtyping import Bool, Float, Int
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

    The returns of the critic are ``advantages + values``. :math:`e_s` is 1 if the action of step s
    ended an episode. Truncated episodes count as ended, as in BabyAI's code, since the reward falls
    with time. ``next_values`` are those of the observation after the last step, :math:`\gamma` is
    ``discount`` and :math:`\lambda` ``decay``.

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


def action_log_probs(
    logits: Float[Tensor, "*frames A"], actions: Int[Tensor, "*frames"]
) -> Float[Tensor, "*frames"]:
    """Return the log-probability of each action."""
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
    r"""Return the PPO loss of actor and critic on some frames, and its terms.

    With :math:`\rho = \pi(a) / \pi_{old}(a)`, :math:`\epsilon` = ``clip``, and
    :math:`\bar v = v_{old} + \mathrm{clip}(v - v_{old}, \pm\epsilon)`, the mean over all frames of

    .. math:: -\min\bigl(\rho A,\; \mathrm{clip}(\rho, 1 \pm \epsilon)\, A\bigr)
              + c_v \max\bigl((v - R)^2, (\bar v - R)^2\bigr)
              - c_e\, \mathrm{H}(\pi)

    All frames have equal weight, and so have all tasks, of which a batch has equal numbers of
    frames. Old values are those of the rollout. R are the returns, in units of the (scaled) reward;
    the critic's loss has no factor 1/2. The entropy H is in nats.

    Returns:
        The loss, and without gradients ``policy_loss``, ``value_loss`` and ``entropy`` (before
        weighting), ``approximate_kl`` from the old policy to the new one (the mean of
        :math:`\rho - 1 - \log\rho`), and ``clip_fraction``, the fraction of frames whose ratio is
        outside the range.

    References:
        Schulman, Wolski, Dhariwal, Radford and Klimov, *Proximal Policy Optimization Algorithms*,
        2017, arXiv:1707.06347, equations 7 and 9. The clipped value loss is that of its authors'
        code; settings for BabyAI are those of Hui et al., *BabyAI 1.1*, 2020, arXiv:2007.12770.
    """
    log_probs = logits.log_softmax(-1)
    log_ratio = action_log_probs(logits, actions) - old_log_probs
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


def imitation_loss(
    logits: Float[Tensor, "*frames A"],
    actions: Int[Tensor, "*frames"],
    mask: Bool[Tensor, "*frames"],
    *,
    entropy_coef: float,
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    r"""Return the cross-entropy of the demonstrated actions less an entropy bonus, and statistics.

    .. math:: \frac{1}{\sum m} \sum m\, \bigl(-\log \pi(a) - c_e\, \mathrm{H}(\pi)\bigr)

    All frames under the mask have equal weight, so a task with longer demonstrations weighs more
    unless there is one loss per task. Without such frames the loss is 0. The mask is false for
    padding, whose actions may be any valid numbers.

    Returns:
        The loss, and without gradients ``cross_entropy``, ``entropy`` and ``accuracy``, the
        fraction of frames whose most probable action is the demonstrated one.

    References:
        Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
        Language Learning*, ICLR 2019, arXiv:1810.08272, section 4.1.
    """
    log_probs = logits.log_softmax(-1)
    n_frames = mask.sum().clamp_min(1)
    cross_entropy = -(mask * action_log_probs(logits, actions)).sum() / n_frames
    entropy = -(mask[..., None] * log_probs.exp() * log_probs).sum() / n_frames
    accuracy = (mask & (logits.argmax(-1) == actions)).sum() / n_frames
    loss = cross_entropy - entropy_coef * entropy
    statistics = {"cross_entropy": cross_entropy, "entropy": entropy, "accuracy": accuracy}
    return loss, {name: value.detach() for name, value in statistics.items()}
