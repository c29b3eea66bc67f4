"""Answers that a language model generates to texts, many at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mttl.data.collate import pad_id_of, padded_inputs
from mttl.data.encode import PromptPrefix, TextEncoder
from mttl.models.generation import generate_texts


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Cut rows into batches of similar length; each row is in one."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@torch.no_grad()
def answer_texts(
    generate: Callable[..., Tensor],
    encoder: TextEncoder,
    texts: Sequence[str],
    *,
    prompt_prefixes: Sequence[PromptPrefix] = (),
    decoder_only: bool,
    device: torch.device,
    batch_size: int = 64,
    on_rows: Callable[[int], object] = lambda n: None,
    **settings: Any,
) -> list[str]:
    """Generate an answer to every text; texts of similar length share a batch.

    Args:
        generate: Gets the places of a batch's rows, and the arguments of a model's ``generate``.
        encoder: Encodes texts for the model.
        texts: Texts as the model reads them.
        prompt_prefixes: The beginning of each text, kept when long texts are cut at their start.
        decoder_only: Whether the model is decoder-only.
        device: Device of the model.
        batch_size: Number of texts at a time.
        on_rows: Called after each batch with its size.
        **settings: Further arguments of ``generate``.

    Returns:
        The answers in the order of the texts, without blanks around them.
    """
    prompts = encoder.prompts(texts, prompt_prefixes)
    answers = [""] * len(prompts)
    for rows in batches_by_length([len(prompt) for prompt in prompts], batch_size):
        batch = padded_inputs(
            [prompts[row] for row in rows], pad_id_of(encoder.tokenizer), left=decoder_only
        )
        found = generate_texts(
            partial(generate, rows),
            encoder.tokenizer,
            {name: value.to(device) for name, value in batch.items()},
            decoder_only=decoder_only,
            **settings,
        )
        for row, answer in zip(rows, found, strict=True):
            answers[row] = answer
        on_rows(len(rows))
    return answers
