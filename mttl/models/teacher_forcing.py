"""Teacher forcing: a language model predicts each token of an answer from the true ones before it.

| model | reads | predicts |
|---|---|---|
| encoder–decoder | the prompt; in the decoder a start token and the answer | the answer |
| decoder-only | prompt and answer in one sequence | the token after each position |
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.models.backbone import is_decoder_only


def forced_inputs(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what a model has to be called with; the labels are not among it.

    Args:
        model: A language model of transformers, which would compute a loss of its own if it were
            given the labels.
        batch: ``input_ids``, ``attention_mask`` and ``labels`` of `mttl.data.collate`.
    """
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if not is_decoder_only(model):
        prepare: Any = model.prepare_decoder_input_ids_from_labels
        inputs["decoder_input_ids"] = prepare(labels=batch["labels"])
    return inputs


def forced_logits(
    model: nn.Module, batch: Mapping[str, Any]
) -> tuple[Float[Tensor, "B L V"], Int[Tensor, "B L"]]:
    """Run a model on a batch.

    Returns:
        The logits, and the labels that they predict, position by position.
    """
    logits, labels = model(**forced_inputs(model, batch), use_cache=False).logits, batch["labels"]
    if is_decoder_only(model):
        return logits[:, :-1], labels[:, 1:].contiguous()
    return logits, labels
