"""Tags of words, beside the head of transformers."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForTokenClassification, BertConfig

from mttl.heads import HeadBatch, TokenHead

TAGS = ["O", "B-X", "I-X"]
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ROUNDING = {"rtol": 1e-6, "atol": 1e-6}  # losses are of single precision, whose rounding is 6e-8


def test_equal_to_transformers():
    config = BertConfig(**SIZES, intermediate_size=24, num_labels=3, hidden_dropout_prob=0.0)
    theirs = AutoModelForTokenClassification.from_config(config).double().eval()
    head = TokenHead(16, TAGS, dropout=0.0).double()
    head.output.load_state_dict(theirs.classifier.state_dict())
    ids = torch.randint(1, 40, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    starts = torch.tensor([[1, 2, 4], [1, 3, -1]])
    answers = ["O B-X I-X", "I-X O"]
    labels = torch.tensor([[-100, 0, 1, -100, 2, -100], [-100, 2, -100, 0, -100, -100]])

    batch = HeadBatch(mask.bool(), starts, head.targets(answers))
    hidden = theirs.bert(ids, mask).last_hidden_state.detach().requires_grad_()
    losses = head.losses(hidden, batch)
    expected = theirs(ids, mask, labels=labels)
    loss = losses.sum() / 5  # the mean over all words
    found = torch.autograd.grad(loss, list(head.parameters()))
    gradients = torch.autograd.grad(expected.loss, list(theirs.classifier.parameters()))
    assert_close((loss.double(), *found), (expected.loss, *gradients), **ROUNDING)
    tags = [[TAGS[place] for place in row] for row in expected.logits.argmax(-1).tolist()]
    of_words = [
        " ".join(row[p] for p in own if p >= 0)
        for row, own in zip(tags, starts.tolist(), strict=True)
    ]
    assert head.answers(hidden, batch) == of_words


def test_unknown_tags_are_errors():
    with pytest.raises(ValueError, match=r"tag \('B-Y'\) must be one of O, B-X, I-X"):
        TokenHead(4, TAGS).targets(["O", "O B-Y"])
