"""Losses against those that transformers computes itself."""

import random

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from helpers.backbones import tiny_llama, tiny_t5
from mttl.data.collate import TrainCollator
from mttl.data.encode import TextEncoder
from mttl.data.raw_text import InfilledSpans, MaskedTokens, mask_id
from mttl.io.errors import ConfigError
from mttl.models.backbone import load_tokenizer
from mttl.sparse.objectives import TaskObjective, TextObjective

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
    model, objective = llama(), TextObjective(TOKENIZER, TEXTS, 32)
    lines = [[*TOKENIZER(text, add_special_tokens=False)["input_ids"], 1] for text in TEXTS]
    assert objective.n_rows == 3
    torch.testing.assert_close(objective.loss(model, [0, 1, 2], 0), theirs(model, lines, lines))
    short = TextObjective(TOKENIZER, TEXTS, 6)
    assert [len(line) for line in short.lines] == [5, 5, 1]


def test_tasks_of_both_kinds_of_models():
    for model, decoder_only in ((t5(), False), (llama(), True)):
        encoder = TextEncoder(
            TOKENIZER, decoder_only=decoder_only, max_input_length=32, max_output_length=16
        )
        prompts, answers = encoder.prompts(["walk", "be"]), encoder.answers(["walked", "was"])
        inputs, labels = prompts, answers
        if decoder_only:
            inputs = [p + a for p, a in zip(prompts, answers, strict=True)]
            labels = [[-100] * len(p) + a for p, a in zip(prompts, answers, strict=True)]
        rows = [
            {"input_ids": prompt, "labels": answer, "task_id": 0}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        found = TaskObjective(rows, TrainCollator(0, decoder_only)).loss(model, [1, 0], 0)
        torch.testing.assert_close(found, theirs(model, inputs, labels))


def test_text_is_corrupted_by_the_seed():
    restored = TextObjective(TOKENIZER, ["abcdefghijklmnopqrst"], 32, InfilledSpans(TOKENIZER, "_"))
    masked = TextObjective(TOKENIZER, TEXTS, 32, MaskedTokens(TOKENIZER))
    for objective, model in ((restored, t5()), (masked, BertForMaskedLM(BERT).eval())):
        draw, rows = random.Random(3), range(objective.n_rows)
        pairs = [objective.corruption.pair(objective.lines[row], draw) for row in rows]
        expected = theirs(model, *zip(*pairs, strict=True))
        torch.testing.assert_close(objective.loss(model, rows, 3), expected)
        assert objective.loss(model, rows, 4) != expected


def test_masks_and_text_are_found_or_asked_for():
    assert mask_id(TOKENIZER, None) == TOKENIZER.convert_tokens_to_ids("<extra_id_0>")
    with pytest.raises(ConfigError, match=r"--mask \('ab'\) has 2 tokens; it must be one"):
        mask_id(TOKENIZER, "ab")

    class Bare:
        mask_token_id = None

        def get_vocab(self):
            return {}

    with pytest.raises(ConfigError, match=r"Bare has no mask token; .* set its text by --mask"):
        mask_id(Bare(), None)  # type: ignore[arg-type]
    for texts in ([], [""]):
        with pytest.raises(ConfigError, match="the text has no line with tokens"):
            TextObjective(TOKENIZER, texts, 8)
    with pytest.raises(ConfigError, match=r"--max-length \(1\) leaves no tokens"):
        TextObjective(TOKENIZER, TEXTS, 1, InfilledSpans(TOKENIZER))
