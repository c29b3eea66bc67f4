"""Log-likelihoods of answers, and Fisher information of whole language models."""

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch
from mttl.aggregation.fisher import diagonal_fisher
from mttl.merging.likelihood import answer_log_likelihood, likelihood_batch, sample_targets


def padded(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return three rows of which the second is shorter, as the collator makes them."""
    made = batch(3)
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    made["attention_mask"][1, 3:] = 0
    made["labels"][1, 3:] = -100
    if not model.config.is_encoder_decoder:  # type: ignore[union-attr]
        made["labels"] = made["input_ids"].clone()
        made["labels"][:, :2] = -100
        made["labels"][1, 3:] = -100
    return made


def by_backward(model: nn.Module, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the mean squared gradient with the loss of transformers, one row at a time."""
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for row in range(3):
        model.zero_grad()
        single = {name: value[row : row + 1] for name, value in made.items()}
        n_tokens = int((single["labels"] != -100).sum())
        (model(**single).loss * n_tokens).backward()  # its loss is the mean over tokens
        for name, value in model.named_parameters():
            if value.grad is not None:
                total[name] += value.grad**2 / 3
    return total


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("family", BACKBONES)
def test_fisher_information_is_that_of_a_loop(family: str, at_once: int) -> None:
    model = BACKBONES[family]()
    model.set_attn_implementation("eager")
    made = padded(model)
    found = diagonal_fisher(
        model,
        answer_log_likelihood(model, traceable=at_once > 1),
        [likelihood_batch(model, made)],
        at_once=at_once,
    )
    expected = by_backward(model, made)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        # Squares of float32 gradients; where a gradient is zero but for rounding (a bias of BART's
        # keys), only the size of the rounding agrees.
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-9)


def test_targets_are_drawn_only_where_there_are_any() -> None:
    for family in ("t5", "llama"):
        model = BACKBONES[family]().train()
        made = likelihood_batch(model, padded(model))
        drawn = sample_targets(model, made, torch.Generator().manual_seed(0))
        assert model.training
        ignored = made["targets"] == -100
        assert torch.equal(drawn["targets"] == -100, ignored)
        assert (drawn["targets"] != made["targets"]).any()
        # What the decoder reads is still the reference.
        others = made.keys() - {"targets"}
        assert all(torch.equal(drawn[name], made[name]) for name in others)
        again = sample_targets(model, made, torch.Generator().manual_seed(0))
        assert torch.equal(again["targets"], drawn["targets"])


def test_tokens_are_drawn_as_likely_as_the_model_says() -> None:
    model = BACKBONES["t5"]()
    made = likelihood_batch(model, padded(model))
    single = {name: value[:1].expand(4000, -1) for name, value in made.items()}
    drawn = sample_targets(model, single, torch.Generator().manual_seed(1))["targets"][:, 0]
    with torch.no_grad():
        inputs = {name: value[:1] for name, value in made.items() if name != "targets"}
        expected = model(**inputs).logits[0, 0].softmax(-1)
    found = torch.bincount(drawn, minlength=len(expected)) / 4000
    # Five standard deviations of the frequency of an event in 4,000 draws.
    torch.testing.assert_close(found, expected, atol=5 * 0.5 / 4000**0.5, rtol=0)
