"""Losses against those that transformers computes itself."""

import random

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from helpers.backbones import tiny_llama, tiny_t5
from mttl.data.encode import TextEncoder
from mttl.io.errors import ConfigError
from mttl.models.backbone import load_tokenizer
from mttl.sparse.objectives import (
    CausalText,
    MaskedText,
    RestoredText,
    TaskObjective,
    language_loss,
    mask_id,
)

BERT = BertConfig(
    vocab_size=384, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
)
TOKENIZER = load_tokenizer("byte")
TEXTS = ["one line of text", "naïve", "a"]


def t5():
    return tiny_t5(vocab_size=384, num_layers=1)


def llama():
    return tiny_llama(vocab_size=384, num_hidden_layers=1)


def theirs(model, inputs, labels):
    """Return the mean loss over all labelled tokens, example by example without padding."""
    losses, counts = [], []
    for ids, wanted in zip(inputs, labels, strict=True):
        given = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([wanted])}
        shift = 0 if model.config.is_encoder_decoder or isinstance(model, BertForMaskedLM) else 1
        counts.append(sum(token != -100 for token in wanted[shift:]))
        losses.append(counts[-1] * model(**given).loss)
    return sum(losses) / sum(counts)


def test_causal_text_is_read_whole_with_its_end():
    model, objective = llama(), CausalText(TOKENIZER, TEXTS, 32)
    lines = [[*TOKENIZER(text, add_special_tokens=False)["input_ids"], 1] for text in TEXTS]
    assert [objective.whole(row) for row in range(3)] == lines
    assert objective.n_rows == 3
    torch.testing.assert_close(objective.loss(model, [0, 1, 2], 0), theirs(model, lines, lines))
    short = CausalText(TOKENIZER, TEXTS, 6)
    assert [len(short.whole(row)) for row in range(3)] == [6, 6, 2]


def test_tasks_of_both_kinds_of_models():
    rows = [("walk", "walked"), ("be", "was")]
    for model, decoder_only in ((t5(), False), (llama(), True)):
        encoder = TextEncoder(
            TOKENIZER, decoder_only=decoder_only, max_input_length=32, max_output_length=16
        )
        prompts, answers = encoder.prompts(["walk", "be"]), encoder.answers(["walked", "was"])
        inputs, labels = prompts, answers
        if decoder_only:
            inputs = [p + a for p, a in zip(prompts, answers, strict=True)]
            labels = [[-100] * len(p) + a for p, a in zip(prompts, answers, strict=True)]
        found = TaskObjective(encoder, rows).loss(model, [1, 0], 0)
        torch.testing.assert_close(found, theirs(model, inputs, labels))


def test_restored_text_hides_a_share_and_keeps_the_order():
    objective = RestoredText(TOKENIZER, ["abcdefghijklmnopqrst"], 32, mask="_")
    line, mask = objective.lines[0], mask_id(TOKENIZER, "_")
    for seed in range(20):
        corrupted = objective.corrupt(line, random.Random(seed))
        left = [token for token in corrupted if token != mask]
        letters = iter(line)
        assert all(token in letters for token in left)
        assert 14 <= len(left) <= 19  # a mask may be put over a mask
        assert corrupted == objective.corrupt(line, random.Random(seed))
    model = t5()
    shown = [[*objective.corrupt(line, random.Random(3)), 1]]
    torch.testing.assert_close(objective.loss(model, [0], 3), theirs(model, shown, [[*line, 1]]))


def test_masked_text_asks_for_fifteen_percent_as_bert_does():
    tokenizer = load_tokenizer("byte")
    tokenizer.add_special_tokens({"mask_token": "<extra_id_1>"})
    objective = MaskedText(tokenizer, ["x" * 60], 64)
    mask, own = tokenizer.mask_token_id, objective.lines[0][0]
    seen, chosen = {"mask": 0, "own": 0, "other": 0}, []

    class Spy(torch.nn.Module):
        config = BERT

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, attention_mask):
            chosen.append(input_ids[0, :-1])
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 384)})

    for seed in range(300):
        objective.loss(Spy(), [0], seed)
        for token in chosen[-1].tolist():
            seen["mask" if token == mask else "own" if token == own else "other"] += 1
    total = 300 * 9  # 15 % of 60
    # Standard deviations of these counts are below 21.
    assert abs(seen["mask"] - 0.8 * total) < 90
    assert abs(seen["other"] - 0.1 * total) < 75

    model = BertForMaskedLM(BERT).eval()
    inputs, labels = [[5, 6, 7], [8, 9]], [[5, -100, 3], [-100, 4]]
    found = language_loss(model, inputs, labels, 0, masked=True)
    torch.testing.assert_close(found, theirs(model, inputs, labels))


def test_masks_and_text_are_found_or_asked_for():
    assert mask_id(TOKENIZER, None) == TOKENIZER.convert_tokens_to_ids("<extra_id_0>")
    with pytest.raises(ConfigError, match=r"--mask \('ab'\) has 2 tokens; it must be one"):
        mask_id(TOKENIZER, "ab")

    class Bare:
        mask_token_id = unk_token_id = None

        def convert_tokens_to_ids(self, token):
            return None

    with pytest.raises(ConfigError, match="Bare has no mask token; set its text by --mask"):
        mask_id(Bare(), None)  # type: ignore[arg-type]
    for texts in ([], [""]):
        with pytest.raises(ConfigError, match="the text has no line with tokens"):
            CausalText(TOKENIZER, texts, 8)
    with pytest.raises(ConfigError, match=r"--max-length \(1\) leaves no tokens"):
        RestoredText(TOKENIZER, TEXTS, 1)
