"""Encoded rows of tasks with heads, beside the tokenizer's own pairs."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mttl.data.encode import PromptPrefix
from mttl.data.headed import HeadedCollator, HeadedEncoder
from mttl.tasks.head_form import HeadForm

NAMES = ["input_ids", "token_type_ids", "attention_mask"]


def make_tokenizer(names: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words with the special tokens of BERT."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcde", "the"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, sep_token="[SEP]", model_input_names=names, **special
    )


@pytest.mark.parametrize("names", [NAMES, NAMES[::2]], ids=["types", "no types"])
def test_pairs_are_those_of_the_tokenizer(names):
    tokenizer, form = make_tokenizer(names), HeadForm(kind="label", labels=["x", "y"])
    encoder, pairs = HeadedEncoder(tokenizer, 32), [("a b", "c"), ("d", "e a b")]
    rows = [
        encoder.encode(form, f"{one} [SEP] {other}", PromptPrefix(""))[0]._asdict()
        | {"task_id": 0, "references": ["x"]}
        for one, other in pairs
    ]
    batch = HeadedCollator(0)(rows)
    expected = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    assert set(expected) == set(names)
    for name in NAMES:
        assert (name in batch) is (name in names)
        if name in names:
            assert batch[name].equal(expected[name])
