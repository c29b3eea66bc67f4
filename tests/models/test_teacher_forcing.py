"""Teacher forcing, beside one forward pass per token of the answer."""

from typing import Any

import pytest
import torch

from helpers.backbones import BACKBONES
from mttl.data.collate import TrainCollator
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_inputs, forced_logits

PROMPT, ANSWER = [5, 6, 7], [8, 9, 3]


@pytest.mark.parametrize("family", BACKBONES)
def test_each_token_is_predicted_from_the_true_ones_before_it(family: str) -> None:
    model: Any = BACKBONES[family]().eval()
    decoder_only = is_decoder_only(model)
    rows = [
        {"input_ids": PROMPT, "labels": ANSWER, "task_id": 0},
        {"input_ids": [4], "labels": [5], "task_id": 0},  # the other row is padded
    ]
    batch = TrainCollator(0, 1, decoder_only)(rows)
    logits, labels = forced_logits(model, batch)
    assert "labels" not in forced_inputs(model, batch)
    answered = labels[0] != -100
    assert labels[0][answered].tolist() == ANSWER
    for place, predicted in enumerate(logits[0][answered]):
        before = torch.tensor([[*PROMPT, *ANSWER[:place]]])
        if decoder_only:
            expected = model(before).logits[0, -1]
        else:
            start = [model.config.decoder_start_token_id, *ANSWER[:place]]
            ids = torch.tensor([PROMPT])
            expected = model(ids, decoder_input_ids=torch.tensor([start])).logits[0, -1]
        torch.testing.assert_close(predicted, expected)
