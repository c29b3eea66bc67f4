"""T-Few's losses against loops over rows, options and tokens that are scored one by one."""

import math

import pytest
import torch

from helpers.backbones import tiny_llama, tiny_t5
from helpers.skills import skilled
from mttl.config.load import load_config
from mttl.data.collate import TrainCollator
from mttl.inference.option_scorer import OptionScorer, OptionTraining
from mttl.io.errors import ConfigError, TaskError
from mttl.models.backbone import is_decoder_only

OPTIONS = {0: [[3, 1], [4, 5, 6, 1], [8, 8, 1]], 2: [[9, 10, 1], [12, 1]]}
TEXTS = {0: ["a", "b", "c"], 2: ["d", "e"]}
ROWS = [
    {"input_ids": [5, 6, 7], "labels": [4, 5, 6, 1], "task_id": 0},
    {"input_ids": [9], "labels": [12, 1], "task_id": 2},
    {"input_ids": [9, 9], "labels": [3, 1], "task_id": 0},
]


def of_options(**weights: float) -> OptionTraining:
    return OptionTraining(OptionScorer(TEXTS, OPTIONS, 0, True), **weights)


def probability(model, row, answer, place) -> torch.Tensor:
    """Return the probability of one token of an answer, from a pass of its own."""
    before, config = answer[:place], model.backbone.config
    if config.is_encoder_decoder:
        start = [config.decoder_start_token_id, *before]
        inputs = {"input_ids": [row["input_ids"]], "decoder_input_ids": [start]}
    else:
        inputs = {"input_ids": [[*row["input_ids"], *before]]}
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    return model(torch.tensor([row["task_id"]]), **tensors).logits[0, -1].softmax(-1)[answer[place]]


def by_loops(model) -> tuple[float, float]:
    """Return the formulas of the paper, its constant within the logarithm that of the code."""
    costs, choices = [], []
    for row in ROWS:
        means = {}
        for option in OPTIONS[row["task_id"]]:
            found = [float(probability(model, row, option, place)) for place in range(len(option))]
            means[tuple(option)] = sum(map(math.log, found)) / len(option)
            if option != row["labels"]:
                costs += [-math.log(1 - value + 0.01) for value in found]
        total = sum(math.exp(mean) for mean in means.values())
        choices.append(-math.log(math.exp(means[tuple(row["labels"])]) / total))
    return sum(costs) / len(costs), sum(choices) / len(choices)


@pytest.mark.parametrize("make", [tiny_t5, tiny_llama])
def test_losses_are_those_of_loops(make) -> None:
    model = skilled(make())  # in evaluation mode, so that nothing is drawn
    batch = TrainCollator(0, 3, is_decoder_only(model.backbone))(ROWS)
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
    batch = TrainCollator(0, 3, False)([{**ROWS[0], "labels": [7, 1]}])
    with pytest.raises(TaskError, match=r"is none of its task's options \(a, b, c\)"):
        of_options(unlikelihood=1.0, length_normalised=0.0).losses(model, batch)


@pytest.mark.parametrize("setting", ["adapt.mode=zero_shot", "adapt.examples=0"])
def test_losses_without_steps_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="are losses of gradient descent, and mode 'zero_shot'"):
        load_config("crossfit.yaml", ["adapt.unlikelihood=1", setting])
