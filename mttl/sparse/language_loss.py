"""The loss of a language model of transformers, of whatever kind it is."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mttl.data.collate import pad, padded_inputs
from mttl.training.loss import IGNORED, global_mean, token_losses


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
    settings: Any = model.config
    if settings.is_encoder_decoder:
        # The model would compute a loss of its own if it were given the labels.
        prepare: Any = model.prepare_decoder_input_ids_from_labels
        batch["decoder_input_ids"] = prepare(labels=wanted)
    extra = {} if masked else {"use_cache": False}
    logits = model(**batch, **extra).logits
    if not (settings.is_encoder_decoder or masked):
        logits, wanted = logits[:, :-1], wanted[:, 1:].contiguous()
    return global_mean(token_losses(logits, wanted), wanted)
