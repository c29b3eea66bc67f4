"""Labels and numbers of texts, beside the heads of transformers."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    PreTrainedModel,
    RobertaConfig,
)

from mttl.heads import HeadBatch, LabelHead

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "pad_token_id": 0}
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # double precision, sums in another order
NO_WORDS = torch.zeros(2, 0, dtype=torch.long)


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of a head of transformers."""
    if hasattr(model, "score"):
        return [model.score]
    if hasattr(model.classifier, "dense"):
        return [model.classifier.dense, model.classifier.out_proj]
    return [model.bert.pooler.dense, model.classifier]


@pytest.mark.parametrize("labels", [[], ["no", "yes", "maybe"]], ids=["number", "label"])
@pytest.mark.parametrize(
    ("config", "settings", "left"),
    [
        (BertConfig, {"dense": True, "dropout": 0.0}, False),
        # In training, with equal random numbers.
        (RobertaConfig, {"dense": True, "dropout": 0.5}, False),
        (LlamaConfig, {"pool": "last", "bias": False, "dropout": 0.0}, False),
        (LlamaConfig, {"pool": "last", "bias": False, "dropout": 0.0}, True),
    ],
    ids=["bert", "roberta", "llama", "llama, padding before"],
)
def test_equal_to_transformers(config, settings, left, labels):
    made = config(**SIZES, num_labels=len(labels) or 1)
    made.hidden_dropout_prob = made.attention_probs_dropout_prob = 0.0
    made.classifier_dropout = settings["dropout"]
    theirs = AutoModelForSequenceClassification.from_config(made).double().train()
    head = LabelHead(16, labels, **settings).double()
    for own, other in zip(filter(None, (head.dense, head.output)), layers(theirs), strict=True):
        own.load_state_dict(other.state_dict())
    ids = torch.randint(2, 40, (2, 5))
    ids[0, slice(None, 2) if left else slice(3, None)] = 0
    answers = ["yes", "no"] if labels else ["-1.5", "2"]

    batch = HeadBatch(ids != 0, NO_WORDS, head.targets(answers))
    targets = batch.targets["labels"]
    torch.manual_seed(1)
    expected = theirs(ids, batch.mask.int(), labels=targets.double() if not labels else targets)
    hidden = theirs.base_model(ids, batch.mask.int()).last_hidden_state
    torch.manual_seed(1)
    loss = head.losses(hidden, batch).mean()
    # Losses are of single precision here, whose rounding is 6e-8.
    assert_close(loss.double(), expected.loss, rtol=1e-6, atol=1e-6)
    torch.manual_seed(1)
    assert_close(head(hidden, batch), expected.logits, **ROUNDING)
    head.eval()
    theirs.eval()
    logits = theirs(ids, batch.mask.int()).logits
    values = [labels[row.argmax()] if labels else f"{float(row[0]):.6g}" for row in logits.detach()]
    assert head.answers(hidden, batch) == values
    of_both = (
        (head(hidden, batch)[0, 0], [*head.parameters()]),
        (
            logits[0, 0],
            [p for layer in layers(theirs) for p in layer.parameters()],
        ),
    )
    for own, other in zip(*(torch.autograd.grad(*pair) for pair in of_both), strict=True):
        assert_close(own, other, **ROUNDING)


def test_pools_leave_padding_out():
    hidden = torch.randn(2, 4, 3, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    batch = HeadBatch(mask, NO_WORDS)
    pooled = {
        "first": [hidden[0, 1], hidden[1, 0]],
        "last": [hidden[0, 2], hidden[1, 3]],
        "mean": [(hidden[0, 1] + hidden[0, 2]) / 2, hidden[1].mean(0)],
    }
    for pool, expected in pooled.items():
        head = LabelHead(3, ["a", "b"], pool=pool, dropout=0.0).double()
        assert_close(head(hidden, batch), head.output(torch.stack(expected)), **ROUNDING)


def test_wrong_settings_and_answers_are_errors():
    with pytest.raises(ValueError, match=r"pool \('max'\) must be one of first, mean, last"):
        LabelHead(4, pool="max")
    with pytest.raises(ValueError, match=r"label \('c'\) must be one of a, b"):
        LabelHead(4, ["a", "b"]).targets(["a", "c"])
    with pytest.raises(ValueError, match="'c'; the answers of a regression must be numbers"):
        LabelHead(4).targets(["1", "c"])
