"""Behaviour cloning: learn to act as in demonstrations."""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def imitation_loss(
    logits: Float[Tensor, "*frames A"],
    actions: Int[Tensor, "*frames"],
    mask: Bool[Tensor, "*frames"],
    *,
    entropy_coef: float,
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    r"""Return how unlikely the demonstrated actions are, less a bonus for entropy.

    .. math:: \frac{1}{\sum m} \sum m\, \bigl(-\log \pi(a) - c_e\, \mathrm{H}(\pi)\bigr)

    All frames under the mask have the same weight, so a task with longer demonstrations weighs
    more, unless the caller computes one loss per task. A batch without such frames has a loss of 0.

    Args:
        logits: Of the policy, for the A actions; with any leading axes.
        actions: Those of the demonstrations; any valid number where the mask is false.
        mask: The frame counts. False where a demonstration had ended and was padded.
        entropy_coef: Weight :math:`c_e` of the entropy H, in nats.

    Returns:
        The loss, and without gradients ``cross_entropy``, ``entropy`` and ``accuracy``, the
        fraction of frames where the most probable action is the demonstrated one.

    References:
        Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
        Language Learning*, ICLR 2019, arXiv:1810.08272, section 4.1.
    """
    log_probs = logits.log_softmax(-1)
    n_frames = mask.sum().clamp_min(1)
    chosen = log_probs.gather(-1, actions[..., None])[..., 0]
    cross_entropy = -(mask * chosen).sum() / n_frames
    entropy = -(mask[..., None] * log_probs.exp() * log_probs).sum() / n_frames
    accuracy = (mask & (logits.argmax(-1) == actions)).sum() / n_frames
    loss = cross_entropy - entropy_coef * entropy
    statistics = {"cross_entropy": cross_entropy, "entropy": entropy, "accuracy": accuracy}
    return loss, {name: value.detach() for name, value in statistics.items()}
