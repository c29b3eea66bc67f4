"""The log-likelihood of each example's answer, for Fisher information."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.fisher import Batch, LogLikelihood
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_inputs, targets_of
from mttl.routing.token.masks import IGNORED
from mttl.training.loss import token_losses
from mttl.training.packing_check import evaluating


def likelihood_batch(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the batch of `answer_log_likelihood`: inputs, and the targets of every position.

    The decoder's inputs come from the labels, so that sampled targets do not change them.
    """
    return {**forced_inputs(model, batch), "targets": targets_of(model, batch["labels"])}


def answer_log_likelihood(model: nn.Module, *, traceable: bool) -> LogLikelihood:
    """Return a function that returns log p(answer | input) of every example of a batch.

    ``traceable`` passes additive masks over queries and keys, which models do not inspect;
    `torch.func.vmap` needs them.
    """

    def log_likelihood(
        call: Callable[..., Any], batch: Batch
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        targets = batch["targets"]
        logits = call(**_inputs(batch, model, traceable), use_cache=False).logits
        counts = (targets != IGNORED).sum(1).to(logits.dtype)
        return -token_losses(logits, targets).sum(1), counts

    return log_likelihood


@torch.no_grad()
def sample_targets(
    model: nn.Module, batch: Mapping[str, Tensor], generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Return a batch whose targets are samples of the model at each position.

    Their squared gradients give the Fisher information instead of the empirical one. Previous
    tokens are those of the true answer, as in the code released with elastic weight removal.
    """
    with evaluating(model):
        logits = model(**_inputs(batch, model, False), use_cache=False).logits
    drawn = torch.multinomial(logits.float().softmax(-1).flatten(0, 1), 1, generator=generator)
    targets = batch["targets"]
    return {**batch, "targets": torch.where(targets == IGNORED, IGNORED, drawn.view_as(targets))}


def _inputs(batch: Batch, model: nn.Module, traceable: bool) -> dict[str, Tensor]:
    inputs = {name: value for name, value in batch.items() if name != "targets"}
    if traceable:
        seen = inputs["attention_mask"].bool()[:, None, None, :]  # axes of heads and queries
        if is_decoder_only(model):
            length = seen.shape[-1]
            seen = seen & torch.ones(length, length, dtype=torch.bool, device=seen.device).tril()
        dtype: torch.dtype = model.dtype  # type: ignore[assignment]
        inputs["attention_mask"] = (~seen).to(dtype) * torch.finfo(dtype).min
    return inputs
