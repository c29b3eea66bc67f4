"""What is generated, as texts."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import ByT5Tokenizer, GenerationConfig

from helpers.backbones import tiny_gpt2, tiny_llama
from mttl.config.schema import Generation
from mttl.models.generation import (
    cache_argument,
    end_also_at,
    generate_texts,
    search_file,
    search_settings,
)


def test_the_prompt_of_a_decoder_only_model_is_cut_off() -> None:
    def generate(input_ids: torch.Tensor, n: int) -> torch.Tensor:
        return torch.cat([input_ids, input_ids[:, -1:] + n], dim=1)

    inputs = {"input_ids": torch.tensor([[1, 100], [35, 101]])}
    for n, only, due in ((5, True, ["f", "g"]), (5, False, ["af", "bg"]), (999, False, ["a", "b"])):
        assert generate_texts(generate, ByT5Tokenizer(), inputs, decoder_only=only, n=n) == due


def test_the_search_of_a_model_that_draws_by_itself(tmp_path: Path) -> None:
    own = GenerationConfig(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, max_length=9)
    own.update(eos_token_id=3, repetition_penalty=1.1, length_penalty=2.0, early_stopping=True)
    applied = Generation(num_beams=2, from_backbone=True)
    for generation, kept in (
        (Generation(), False),
        (Generation(num_beams=2), False),
        (applied, True),
    ):
        found = search_file(own, search_settings(generation, 5, own), pad_id=4)
        found.save_pretrained(tmp_path)  # which refuses settings that have no meaning
        read = GenerationConfig.from_pretrained(tmp_path)
        assert (read.max_new_tokens, read.max_length, read.do_sample) == (5, None, False)
        assert (read.temperature, read.top_p, read.top_k) == (None, None, None)
        assert (read.eos_token_id, read.pad_token_id) == (3, 4)
        assert read.repetition_penalty == (1.1 if kept else 1.0)
        assert (read.early_stopping is True) == kept
    assert own.repetition_penalty == 1.1


@pytest.mark.parametrize(
    ("own", "expected"), [(None, [7]), (1, [1, 7]), ([1, 7], [1, 7]), ([2, 1], [2, 1, 7])]
)
def test_answers_end_at_further_tokens(own, expected: list[int]) -> None:
    config = GenerationConfig(eos_token_id=own)
    end_also_at(config, [7])
    assert config.eos_token_id == expected


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2])
def test_what_is_returned_is_taken(build) -> None:
    model, ids = build().eval(), torch.tensor([[3, 4, 5]])
    name = cache_argument(model)
    with torch.no_grad():
        read = model(input_ids=ids[:, :2], use_cache=True)
        last = model(input_ids=ids[:, 2:], **{name: getattr(read, name)}).logits
        # One token after two, or three at once: the sums are taken in another order.
        assert torch.allclose(last[:, 0], model(input_ids=ids).logits[:, -1], atol=1e-5)
    with pytest.raises(ValueError, match="Linear has none of the arguments cache, past_key_values"):
        cache_argument(nn.Linear(2, 2))
