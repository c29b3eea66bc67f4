"""Training loss: cross-entropy per token, with label smoothing and global means."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mttl.models.teacher_forcing import at_places
from mttl.routing.token.masks import IGNORED


class TokenLoss(nn.Module, ABC):
    """Base class of custom training losses, which replace cross-entropy and have no parameters."""

    @abstractmethod
    def forward(
        self, logits: Float[Tensor, "N V"], targets: Int[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        """Return the loss of each answer token of a batch."""


def token_losses(
    logits: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"], label_smoothing: float = 0.0
) -> Float[Tensor, "B L"]:
    """Return the loss of each position; 0 where the label is ignored.

    With smoothing ε the target is ``1 - ε`` on the label plus ``ε / V`` on every token.
    """
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.view_as(labels)


def answer_losses(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, "B L"],
    places: Int[Tensor, "N"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, "B L"]:
    """Return the loss of each position, as `token_losses`, from the logits at some positions."""
    losses = token_losses(logits[None], targets.flatten()[places][None], label_smoothing)[0]
    return at_places(losses, places, targets)


def divergences(first: Float[Tensor, "N V"], second: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    r"""Return :math:`\frac12 (\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p))` from logits."""
    p, q = first.float().log_softmax(-1), second.float().log_softmax(-1)
    return 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(-1)


def divergences_from(
    fixed: Float[Tensor, "N V"], logits: Float[Tensor, "N V"]
) -> Float[Tensor, "N"]:
    r"""Return :math:`\mathrm{KL}(p_0 \| p)` from the logits of a fixed and of a trained model."""
    p, fixed_p = logits.float().log_softmax(-1), fixed.float().log_softmax(-1)
    return functional.kl_div(p, fixed_p, reduction="none", log_target=True).sum(-1)


def global_mean(
    losses: Float[Tensor, "..."],
    labels: Int[Tensor, "..."],
    step_tokens: Float[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean over the tokens of all processes, scaled for averaged gradients.

    Data-parallel training averages gradients over processes. Dividing by the mean number of tokens
    per process makes this the gradient of the mean over all tokens. If a step has several batches,
    ``step_tokens`` is this process's mean number of tokens per batch (or of rows, for row losses).
    """
    own = (labels != IGNORED).sum() if step_tokens is None else step_tokens.clone()
    return losses.sum() / _per_process(own.to(losses.dtype))


def task_means(
    losses: Float[Tensor, "B L"],
    labels: Int[Tensor, "B L"],
    task_ids: Int[Tensor, "B"],
    n_tasks: int,
) -> Float[Tensor, "T"]:
    """Return the mean of every task over its tokens, scaled as `global_mean`; 0 without rows."""
    # A sum of products is deterministic on a GPU, unlike `index_add`.
    rows = functional.one_hot(task_ids, n_tasks).to(losses.dtype)
    counts = (rows * (labels != IGNORED).sum(1, keepdim=True)).sum(0)
    return (rows * losses.sum(1, keepdim=True)).sum(0) / _per_process(counts)


def _per_process(count: Tensor) -> Tensor:
    """Return the mean of counts over processes, with 1 for 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count)
        count = count / torch.distributed.get_world_size()
    return torch.where(count > 0, count, 1)


def example_means(losses: Float[Tensor, "B L"], labels: Int[Tensor, "B L"]) -> Float[Tensor, "B"]:
    """Return the mean loss per token of each example."""
    return losses.sum(1) / (labels != IGNORED).sum(1).clamp_min(1)
