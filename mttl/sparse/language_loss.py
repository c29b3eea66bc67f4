"""The loss of a language model: encoder–decoder, decoder-only or masked."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from mttl.data.collate import pad, padded_inputs
from mttl.models.teacher_forcing import forced_logits
from mttl.shapes import IGNORED
from mttl.training.loss import answer_losses, global_mean, token_losses


def language_loss(
    model: nn.Module,
    inputs: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    pad_id: int,
    *,
    masked: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean loss of the labelled tokens.

    Args:
        model: A language model of transformers.
        inputs: Ids of each example.
        labels: Ids to predict: of the answer for an encoder–decoder, else as many as inputs, -100
            where nothing is predicted.
        pad_id: Fills up.
        masked: Labels are those of their own positions, not of the next ones.
    """
    device = next(model.parameters()).device
    batch = {key: value.to(device) for key, value in padded_inputs(inputs, pad_id).items()}
    wanted = pad(labels, IGNORED).to(device)
    if masked:
        return global_mean(token_losses(model(**batch).logits, wanted), wanted)
    logits, wanted, places = forced_logits(model, {**batch, "labels": wanted})
    return global_mean(answer_losses(logits, wanted, places), wanted)
