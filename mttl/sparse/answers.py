"""Answers of a plain language model to the inputs of a task."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from mttl.data.encode import TextEncoder
from mttl.inference.batched_answers import answer_texts
from mttl.models.backbone import is_decoder_only


def answer_inputs(
    model: nn.Module,
    encoder: TextEncoder,
    inputs: Sequence[str],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 64,
    on_rows: Callable[[int], object] = lambda n: None,
) -> list[str]:
    """Generate an answer to every input, greedily; inputs of similar length share a batch."""
    model.eval()
    generate: Any = model.generate
    return answer_texts(
        lambda rows, **settings: generate(**settings),
        encoder,
        inputs,
        decoder_only=is_decoder_only(model),
        device=next(model.parameters()).device,
        batch_size=batch_size,
        on_rows=on_rows,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
