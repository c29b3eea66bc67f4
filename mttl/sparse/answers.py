"""Answers of a plain language model to the inputs of a task."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mttl.data.collate import pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import generate_texts


@torch.no_grad()
def answer_inputs(
    model: nn.Module,
    encoder: TextEncoder,
    inputs: Sequence[str],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 64,
    on_rows: Callable[[int], object] = lambda n: None,
) -> list[str]:
    """Generate an answer to every input, greedily; inputs of similar length share a batch.

    Args:
        model: A language model of transformers; left in evaluation mode.
        encoder: Encodes inputs for it.
        inputs: Texts.
        max_new_tokens: Most tokens of an answer.
        batch_size: Inputs at a time.
        on_rows: Called after each batch with its size.

    Returns:
        The answers in the order of the inputs, without blanks around them.
    """
    model.eval()
    device = next(model.parameters()).device
    pad_id = pad_id_of(encoder.tokenizer)
    prompts = encoder.prompts(inputs)
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    answers = [""] * len(prompts)
    generate: Any = model.generate
    decoder_only = is_decoder_only(model)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = padded_inputs([prompts[row] for row in rows], pad_id, left=decoder_only)
        texts = generate_texts(
            generate,
            encoder.tokenizer,
            {key: value.to(device) for key, value in batch.items()},
            decoder_only=decoder_only,
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        for row, text in zip(rows, texts, strict=True):
            answers[row] = text
        on_rows(len(rows))
    return answers
