"""What is generated, as texts."""

from types import SimpleNamespace
from typing import Any

import torch

from mttl.models.generation import generate_texts


def test_the_prompt_of_a_decoder_only_model_is_cut_off() -> None:
    def generate(input_ids: torch.Tensor, n: int) -> torch.Tensor:
        return torch.cat([input_ids, input_ids[:, -1:] + n], dim=1)

    def decode(ids: torch.Tensor, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [f" {row.tolist()} " for row in ids]

    tokenizer: Any = SimpleNamespace(batch_decode=decode)
    inputs = {"input_ids": torch.tensor([[1, 2], [3, 4]])}
    answers = generate_texts(generate, tokenizer, inputs, decoder_only=True, n=5)
    assert answers == ["[7]", "[9]"]
    answers = generate_texts(generate, tokenizer, inputs, decoder_only=False, n=5)
    assert answers == ["[1, 2, 7]", "[3, 4, 9]"]
