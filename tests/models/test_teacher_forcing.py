"""Teacher forcing, beside one forward pass per token of the answer."""

from typing import Any

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES
from mttl.data.collate import TrainCollator
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_inputs, forced_logits, targets_of
from mttl.training.loss import answer_losses, token_losses

PROMPT, ANSWER = [5, 6, 7], [8, 9, 3]
ROWS: list[dict[str, Any]] = [
    {"input_ids": PROMPT, "labels": ANSWER, "task_id": 0},
    {"input_ids": [4], "labels": [5], "task_id": 0},  # is padded
]


@pytest.mark.parametrize("family", BACKBONES)
def test_each_token_is_predicted_from_the_true_ones_before_it(family: str) -> None:
    model: Any = BACKBONES[family]().eval()
    decoder_only = is_decoder_only(model)
    batch = TrainCollator(0, decoder_only)(ROWS)
    logits, targets, places = forced_logits(model, batch)
    assert "labels" not in forced_inputs(model, batch)
    assert targets.flatten()[places].tolist() == [*ANSWER, 5]
    assert (targets != -100).sum() == len(places)
    for place, predicted in enumerate(logits[: len(ANSWER)]):
        before = torch.tensor([[*PROMPT, *ANSWER[:place]]])
        if decoder_only:
            expected = model(before).logits[0, -1]
        else:
            start = [model.config.decoder_start_token_id, *ANSWER[:place]]
            ids = torch.tensor([PROMPT])
            expected = model(ids, decoder_input_ids=torch.tensor([start])).logits[0, -1]
        torch.testing.assert_close(predicted, expected)


@pytest.mark.parametrize("family", BACKBONES)
def test_the_head_sees_answers_only(family: str) -> None:
    """Losses and gradients are those of all logits, whether rows are selected before or after."""
    model: Any = BACKBONES[family]().double().eval()
    batch = TrainCollator(0, is_decoder_only(model))(ROWS)
    seen = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, given, made: seen.append(made.shape[:2]))
    answer_losses(*forced_logits(model, batch)).sum().backward()
    hook.remove()
    assert seen == [(1, 4)]
    assert not head._forward_pre_hooks
    found = {name: value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    logits = model(**forced_inputs(model, batch), use_cache=False).logits
    token_losses(logits, targets_of(model, batch["labels"])).sum().backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad)  # float64: 1e-7 of rounding in sums


def test_a_compiled_model_and_a_head_of_another_kind_compute_all_logits() -> None:
    model: Any = BACKBONES["llama"]().eval()
    batch = TrainCollator(0, True)(ROWS[:1])
    expected = forced_logits(model, batch)[0]
    head = model.get_output_embeddings()
    model.set_output_embeddings(nn.Sequential(head))
    torch.testing.assert_close(forced_logits(model, batch)[0], expected)
    model.set_output_embeddings(head)
    model.compile(backend="eager")
    torch.testing.assert_close(forced_logits(model, batch)[0], expected)
