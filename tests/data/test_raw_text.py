"""Corruption of raw text, and its batches, against the losses of transformers."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from helpers.backbones import tiny_bart, tiny_llama, tiny_t5
from mttl.data.raw_text import (
    Corruption,
    InfilledSpans,
    LineEncoder,
    MaskedTokens,
    RemovedSpans,
    TextCollator,
    corruption_of,
    sentinel_ids,
)
from mttl.models.backbone import is_decoder_only, is_encoder, load_tokenizer
from mttl.models.teacher_forcing import forced_logits
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import Row
from mttl.training.loss import answer_losses, global_mean

TOKENIZER = load_tokenizer("byte")
LINES = ["one line of text", "naïve", "a"]
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "vocab_size": 384, "pad_token_id": 0}


def masked_model(kind: str) -> Any:
    torch.manual_seed(0)
    sizes = dict(SIZES)
    if kind == "distilbert":
        sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 384}
    config = AutoConfig.for_model(kind, **sizes)
    return AutoModelForMaskedLM.from_config(config).eval()


def rows_of(corruption: Corruption | None) -> list[dict[str, Any]]:
    encoder = LineEncoder(TOKENIZER, 32, causal=corruption is None)
    form, lines = HeadForm(kind="text"), [Row(line, (line,)) for line in LINES]
    columns = encoder.columns([form] * 3, lines, [], [])
    pairs = zip(columns["input_ids"], columns["labels"], strict=True)
    return [{"input_ids": ids, "labels": labels, "task_id": 0} for ids, labels in pairs]


@pytest.mark.parametrize(
    "kind",
    ["llama", "t5", "bart", "bert", "roberta", "modernbert", "deberta-v2", "distilbert", "electra"],
)
def test_losses_are_those_of_transformers(kind: str) -> None:
    """Each line alone, without padding, with the same draws."""
    made = {"llama": lambda: tiny_llama(vocab_size=384), "t5": lambda: tiny_t5(vocab_size=384)}
    if kind == "bart":
        model: Any = tiny_bart()
        model.resize_token_embeddings(384)
    else:
        model = made.get(kind, lambda: masked_model(kind))()
    causal = is_decoder_only(model)
    corruption = None if causal else corruption_of(TOKENIZER, encoder=is_encoder(model))
    rows, total, count = rows_of(corruption), 0.0, 0
    collate = TextCollator(0, causal, corruption)
    batch = collate(rows, "1 2 3")
    logits, labels, places = forced_logits(model, batch)
    found = global_mean(answer_losses(logits, labels, places), labels)
    for row in rows:
        one = collate([row], "1 2 3")
        given = {name: one[name] for name in ("input_ids", "attention_mask", "labels")}
        n_targets = collate.n_targets(one)
        total, count = total + n_targets * float(model(**given).loss), count + n_targets
    assert count == (labels != -100).sum() == collate.n_targets(batch)
    torch.testing.assert_close(float(found), total / count)


def test_lines_are_whole_with_their_special_tokens() -> None:
    ids = [TOKENIZER(line)["input_ids"] for line in LINES]
    causal, other = rows_of(None), rows_of(MaskedTokens(TOKENIZER))
    assert [row["input_ids"] + row["labels"] for row in causal] == ids
    assert [row["input_ids"] for row in other] == ids
    lost: list[int] = []
    assert LineEncoder(TOKENIZER, 6, causal=True).encode(LINES, lost) == [
        ids[0][:5],
        ids[1][:5],
        ids[2][:1],
    ]
    assert lost == [11, 1]


def test_masked_tokens_are_shown_as_by_bert() -> None:
    tokenizer = load_tokenizer("byte")
    tokenizer.add_special_tokens({"mask_token": "<extra_id_1>"})
    corruption, line = MaskedTokens(tokenizer), [70] * 60
    seen: Counter[str] = Counter()
    for seed in range(300):
        inputs, labels = corruption.pair(line, random.Random(seed))
        chosen = [place for place, label in enumerate(labels) if label != -100]
        assert len(chosen) == 9  # 15 % of 60
        assert {labels[place] for place in chosen} == {70}
        names = {tokenizer.mask_token_id: "mask", 70: "own"}
        seen.update(names.get(inputs[place], "other") for place in chosen)
        assert inputs[-1] == tokenizer.eos_token_id
        assert labels[-1] == -100
    # Standard deviations of these counts are below 21.
    assert abs(seen["mask"] - 0.8 * 2700) < 90
    assert abs(seen["other"] - 0.1 * 2700) < 75


def test_infilled_spans_keep_the_order() -> None:
    corruption, line = InfilledSpans(TOKENIZER, "_"), list(range(100, 120))
    (mask,) = TOKENIZER("_", add_special_tokens=False)["input_ids"]
    for seed in range(20):
        inputs, labels = corruption.pair(line, random.Random(seed))
        left, rest = [token for token in inputs[:-1] if token != mask], iter(line)
        assert all(token in rest for token in left)
        assert 14 <= len(left) <= 19  # a mask may be put over a mask
        assert labels == [*line, 1]


def test_removed_spans_are_those_of_t5() -> None:
    """The pieces make up the line; numbers are those of T5's `random_spans_noise_mask`."""
    corruption, sentinels = RemovedSpans(TOKENIZER), sentinel_ids(TOKENIZER)
    assert len(sentinels) == 125
    for length, n_removed, n_spans in [
        (1, 1, 1),
        (2, 1, 1),
        (20, 3, 1),
        (100, 15, 5),
        (900, 135, 45),
    ]:
        line = [3 + place % 200 for place in range(length)]
        drawn = set()
        for seed in range(10):
            inputs, labels = corruption.pair(line, random.Random(seed))
            assert len(labels) == n_removed + n_spans + 1 == corruption.n_labels(length + 1)
            used = [token for token in labels if token in sentinels]
            assert used == sentinels[:n_spans] == [token for token in inputs if token in sentinels]
            pieces: dict[int, list[int]] = {}
            for token in labels[:-1]:
                if token in sentinels:
                    name = token
                pieces.setdefault(name, []).append(token)
            joined = [t for token in inputs[:-1] for t in pieces.get(token, [0, token])[1:]]
            assert joined == line
            drawn.add(tuple(inputs))
        assert len(drawn) > 1 or length == 1


@pytest.mark.parametrize("kind", [MaskedTokens, RemovedSpans, InfilledSpans])
def test_draws_differ_between_epochs_and_are_fixed_in_evaluation(kind: type[Corruption]) -> None:
    corruption = kind(TOKENIZER)
    encoder = LineEncoder(TOKENIZER, 80, causal=False)
    lines = [Row("a line of text " * n, ("",)) for n in (1, 2, 4)]
    columns = encoder.columns([HeadForm(kind="text")] * 3, lines, [], [])
    rows = [{"input_ids": ids, "labels": [], "task_id": 0} for ids in columns["input_ids"]]
    collate = TextCollator(0, False, corruption)
    first, again, other = (collate(rows, place) for place in ("13 0 5", "13 0 5", "13 1 5"))
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not (
        first["input_ids"].shape == other["input_ids"].shape
        and torch.equal(first["input_ids"], other["input_ids"])
    )
    alone = collate(rows[:1])["input_ids"][0]
    together = collate(rows)["input_ids"][0, : len(alone)]
    assert torch.equal(alone, together)
