"""Options that share a prompt score as in a loop over single tokens, for every kind of model."""

import math

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from helpers.backbones import BACKBONES, fill, tiny_llama, tiny_t5
from helpers.skills import skilled
from mttl.data.collate import TrainCollator
from mttl.data.prompt_form import PromptForm
from mttl.inference import option_scores as scoring
from mttl.inference.option_scores import OptionScorer, OptionTraining, option_losses, option_scores
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only, load_tokenizer
from mttl.skills import SkilledModel
from training.test_text_to_text import answer_losses

TASKS = torch.tensor([2, 0, 2])
PROMPTS = [[5, 6, 7, 8], [9], [11, 12]]
OPTIONS = [[[3, 1], [4, 5, 6, 1]], [[7, 1]], [[9, 10, 1], [1], [12, 13, 14, 15, 1]]]


def tiny_mistral():
    """Return a model whose window is shorter than a prompt with its answer."""
    config = MistralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=3, pad_token_id=0,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    fill(model, 3)
    return model


def of_one_token_after_another(model: SkilledModel, task: int, prompt, answer) -> list[float]:
    """Return the log-probability of every token of an answer, each from a pass of its own."""
    row = {"input_ids": prompt, "labels": answer, "task_id": task}
    return (-answer_losses(model, row)).tolist()


def expected(model):
    """Return the sums of all options, and their means."""
    sums, means = [], []
    for task, prompt, options in zip(TASKS.tolist(), PROMPTS, OPTIONS, strict=True):
        losses = [of_one_token_after_another(model, task, prompt, option) for option in options]
        sums.append([sum(own) for own in losses])
        means.append([sum(own) / len(own) for own in losses])
    return sums, means


MODELS = {
    **{family: (make, {}) for family, make in BACKBONES.items()},
    "a window": (tiny_mistral, {}),
    "prefixes": (tiny_llama, {"inventory": "prefix", "targets": ("attention",)}),
    "joint prefixes": (tiny_t5, {"inventory": "prefix, joint", "targets": ("attention",)}),
    "prompts in a decoder": (tiny_llama, {"inventory": "prompt", "targets": ("input",)}),
    "prompts in an encoder": (tiny_t5, {"inventory": "prompt", "targets": ("input",)}),
    "outputs": (tiny_llama, {"inventory": "lora-outputs", "n_heads": 2}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_those_of_a_loop(kind: str) -> None:
    make, settings = MODELS[kind]
    model = skilled(make(), **settings)
    for per_token, due in zip((False, True), expected(model), strict=True):
        found = option_scores(model, TASKS, PROMPTS, OPTIONS, pad_id=0, per_token=per_token)
        for own, right in zip(found, due, strict=True):
            # The same float32 products through two blocks, summed over up to five tokens.
            assert own == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("make", [tiny_t5, tiny_llama])
def test_a_prompt_is_read_once(make, monkeypatch) -> None:
    model = skilled(make())
    whole = option_scores(model, TASKS, PROMPTS, OPTIONS, pad_id=0, per_token=True)
    reader = model.backbone.get_encoder() if make is tiny_t5 else model.backbone
    seen = []
    handle = reader.register_forward_pre_hook(
        lambda _, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    assert option_scores(model, TASKS, PROMPTS, OPTIONS, pad_id=0, per_token=True) == whole
    # Three prompts of four tokens; then three options each of five tokens, the last is not read.
    assert seen == ([(3, 4)] if make is tiny_t5 else [(3, 4), (9, 4)])
    handle.remove()
    # In parts, and with prompts repeated, they are the same to rounding.
    monkeypatch.setattr(scoring, "MOST_ROWS", 3)
    parts = option_scores(model, TASKS, PROMPTS, OPTIONS, pad_id=0, per_token=True)
    monkeypatch.setattr(scoring, "shares_prompts", lambda _: False)
    repeated = option_scores(model, TASKS, PROMPTS, OPTIONS, pad_id=0, per_token=True)
    for found in (parts, repeated):
        for own, right in zip(found, whole, strict=True):
            assert own == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("make", [tiny_t5, tiny_llama])
def test_gradients_are_those_of_repeated_prompts(make, monkeypatch) -> None:
    found = []
    for shared in (True, False):
        model = skilled(make())
        if not shared:
            monkeypatch.setattr(scoring, "shares_prompts", lambda _: False)
        losses, counted = option_losses(model, TASKS, PROMPTS, OPTIONS, pad_id=0)
        assert counted.sum(2).tolist() == [[2, 4, 0], [2, 0, 0], [3, 1, 5]]
        losses.sum().backward()
        found.append([value.grad for value in model.parameters() if value.requires_grad])
    for own, right in zip(*found, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-3, atol=1e-5)


# T-Few's losses against loops over rows, options and tokens that are scored one by one.

BY_TASK = {0: [[3, 1], [4, 5, 6, 1], [8, 8, 1]], 2: [[9, 10, 1], [12, 1]]}
TEXTS = {0: ["a", "b", "c"], 2: ["d", "e"]}
ROWS = [
    {"input_ids": [5, 6, 7], "labels": [4, 5, 6, 1], "task_id": 0},
    {"input_ids": [9], "labels": [12, 1], "task_id": 2},
    {"input_ids": [9, 9], "labels": [3, 1], "task_id": 0},
]


def of_options(**weights: float) -> OptionTraining:
    encoder = PromptForm().encoder(load_tokenizer("byte"), decoder_only=False)
    return OptionTraining(OptionScorer(TEXTS, BY_TASK, encoder, True), **weights)


def by_loops(model) -> tuple[float, float]:
    """Return the formulas of the paper, its constant within the logarithm that of the code."""
    costs, choices = [], []
    for row in ROWS:
        means = {}
        for option in BY_TASK[row["task_id"]]:
            found = of_one_token_after_another(model, row["task_id"], row["input_ids"], option)
            means[tuple(option)] = sum(found) / len(option)
            if option != row["labels"]:
                costs += [-math.log(1 - math.exp(value) + 0.01) for value in found]
        total = sum(math.exp(mean) for mean in means.values())
        choices.append(-math.log(math.exp(means[tuple(row["labels"])]) / total))
    return sum(costs) / len(costs), sum(choices) / len(choices)


@pytest.mark.parametrize("make", [tiny_t5, tiny_llama])
def test_losses_are_those_of_loops(make) -> None:
    model = skilled(make())  # in evaluation mode, so that nothing is drawn
    batch = TrainCollator(0, is_decoder_only(model.backbone))(ROWS)
    found = of_options(unlikelihood=1.0, length_normalised=0.5).losses(model, batch)
    unlikely, choice = by_loops(model)
    # float32 through two blocks, and double precision in the loop's sums.
    assert float(found["unlikelihood"]) == pytest.approx(unlikely, rel=1e-4)
    assert float(found["length_normalised"]) == pytest.approx(0.5 * choice, rel=1e-4)
    sum(found.values()).backward()
    assert all(value.grad is not None for value in model.parameters() if value.requires_grad)
    alone = of_options(unlikelihood=0.0, length_normalised=1.0).losses(model, batch)
    assert alone.keys() == {"length_normalised"}


def test_an_answer_that_is_no_option_is_refused() -> None:
    model = skilled(tiny_t5())
    batch = TrainCollator(0, False)([{**ROWS[0], "labels": [7, 1]}])
    with pytest.raises(TaskError, match=r"a training row is not among its options \(a,"):
        of_options(unlikelihood=1.0, length_normalised=0.0).losses(model, batch)
