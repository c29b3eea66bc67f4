"""Teacher forcing: prediction of each token of an answer from the true previous ones.

An encoder–decoder reads the prompt, and in its decoder a start token and the answer. A decoder-only
model reads both in one sequence, and predicts the token after each position. An encoder predicts
tokens at their own positions.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.models.encoder_decoder.modeling_encoder_decoder import shift_tokens_right

from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.routing.token.masks import IGNORED


def forced_inputs(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the arguments of a model of transformers for a batch of `mttl.data.collate`.

    Labels are left out, since the model would compute a loss. Packed rows have ``position_ids``
    instead of a mask.
    """
    if "position_ids" in batch:
        return {name: batch[name] for name in ("input_ids", "position_ids")}
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if not (is_decoder_only(model) or is_encoder(model)):
        inputs["decoder_input_ids"] = shifted(model, batch["labels"])
    return inputs


def shifted(model: nn.Module, labels: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
    """Return the input of an encoder–decoder's decoder: a start token, and all but the last ids."""
    given: Any = model
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return given.prepare_decoder_input_ids_from_labels(labels=labels)
    # M2M100, NLLB and Blenderbot
    ids = given.config.pad_token_id, given.config.decoder_start_token_id
    return shift_tokens_right(labels, *ids)


def targets_of(model: nn.Module, labels: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
    """Return the target of each position: its label, or the next one in a decoder-only model."""
    if not is_decoder_only(model):
        return labels
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)


def places_of(targets: Int[Tensor, "B L"]) -> Int[Tensor, "N"]:
    """Return the indices of the positions with a target among all, flattened."""
    return (targets != IGNORED).flatten().nonzero().flatten()


def at_places(
    losses: Float[Tensor, "N"], places: Int[Tensor, "N"], targets: Int[Tensor, "B L"]
) -> Float[Tensor, "B L"]:
    """Return losses of some positions in a tensor of all positions, 0 elsewhere."""
    return losses.new_zeros(targets.numel()).index_copy(0, places, losses).view_as(targets)


def forced_logits(
    model: nn.Module, batch: Mapping[str, Any]
) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B L"], Int[Tensor, "N"]]:
    """Run a model on a batch, and its head (its largest layer) only on N positions with a target.

    Returns the logits of these positions, the targets of all, and `places_of` the targets.
    """
    targets = targets_of(model, batch["labels"])
    places = places_of(targets)
    cache = {} if is_encoder(model) else {"use_cache": False}
    logits, _ = run_at(model, places, **forced_inputs(model, batch), **cache)
    return logits, targets, places


def run_at(
    model: nn.Module, places: Int[Tensor, "N"], **inputs: Any
) -> tuple[Float[Tensor, "N V"], Any]:
    """Run a model, and its head only on some positions; return their logits and the output."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    # Compiled models would be recompiled for every number of positions, and skills on the head need
    # whole examples.
    if model._compiled_call_impl is None and isinstance(head, nn.Linear):
        # The rows must be contiguous; strided ones, as of `logits_to_keep`, are slower.
        handle = head.register_forward_pre_hook(lambda _, given: (_rows(given[0], places)[None],))
        try:
            found = model(**inputs)
            return found.logits[0], found
        finally:
            handle.remove()
    found = model(**inputs)
    return _rows(found.logits, places), found


def _rows(x: Float[Tensor, "B L F"], places: Int[Tensor, "N"]) -> Float[Tensor, "N F"]:
    return x.flatten(0, 1).index_select(0, places)
