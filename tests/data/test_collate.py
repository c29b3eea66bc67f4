import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mttl.data.collate import (
    EvalCollator,
    PackedCollator,
    PackedSequences,
    TrainCollator,
    pad_id_of,
)

PAD = 0


def row(prompt, answer, task_id=0, **more):
    base = {"row": 7, "task_id": task_id, "sample": 13, "input": "text", "references": ["x", "y"]}
    base |= {"prefix_length": 1, "columns": '{"id": 7}'}
    return {**base, "input_ids": prompt, "labels": answer, **more}


ROWS = [row([5, 6, 7], [8, 1], task_id=2), row([9], [4, 3, 1], task_id=0)]


def test_encoder_decoder_batches():
    batch = TrainCollator(PAD, decoder_only=False)(ROWS)
    assert set(batch) == {"input_ids", "attention_mask", "labels", "task_ids"}
    assert batch["input_ids"].tolist() == [[5, 6, 7], [9, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[8, 1, -100], [4, 3, 1]]
    assert batch["task_ids"].tolist() == [2, 0]
    for tensor in batch.values():
        assert tensor.dtype == torch.long
        assert tensor.is_contiguous()
    evaluated = EvalCollator(PAD, decoder_only=False)(ROWS)
    assert evaluated["sources"] == 2 * [{"input": "ext", "columns": {"id": 7}}]
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(evaluated["generation_inputs"][name], batch[name])
        assert torch.equal(evaluated[name], batch[name])
    assert evaluated["references"] == [["x", "y"], ["x", "y"]]
    assert (evaluated["inputs"], evaluated["samples"]) == (["text", "text"], [13, 13])
    assert evaluated["rows"] == [7, 7]


@pytest.mark.parametrize("pad", [PAD, 1])  # also where padding is the end token
def test_decoder_only_loss_is_on_the_answer_only(pad):
    batch = TrainCollator(pad, decoder_only=True)(ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 1], [9, 4, 3, 1, pad]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[-100, -100, -100, 8, 1], [-100, 4, 3, 1, -100]]


def test_decoder_only_generation_pads_prompts_on_the_left():
    batch = EvalCollator(PAD, decoder_only=True)(ROWS)
    generation = batch["generation_inputs"]
    assert generation["input_ids"].tolist() == [[5, 6, 7], [0, 0, 9]]
    assert generation["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    # The loss of the same batch is still computed on right-padded sequences.
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]


@pytest.mark.parametrize("decoder_only", [False, True])
def test_a_batch_without_rows_has_one_that_nobody_asked_for(decoder_only):
    batch = EvalCollator(PAD, decoder_only)([])
    assert batch["task_ids"].tolist() == [0]
    assert batch["generation_inputs"]["input_ids"].tolist() == [[PAD]]
    assert (batch["labels"] != -100).sum() == 1
    assert not any(batch[name] for name in ("references", "inputs", "samples", "rows"))


def test_a_tokenizer_without_a_padding_token_pads_with_its_end(byte_tokenizer, gpt_like_tokenizer):
    assert (pad_id_of(byte_tokenizer), pad_id_of(gpt_like_tokenizer)) == (0, 1)
    bare = PreTrainedTokenizerFast(tokenizer_object=gpt_like_tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match=" has no padding token and no end token; set its"):
        pad_id_of(bare)


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(LENGTHS)
def test_every_row_has_a_place_and_no_sequence_is_too_long(lengths):
    packed = PackedSequences.of(lengths, 10)
    assert sorted(row for sequence in packed for row in sequence) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in sequence) <= 10 for sequence in packed)
    # First-fit: no row would have had room in an earlier sequence when it came.
    for place, sequence in enumerate(packed):
        for earlier in packed[:place]:
            before = sum(lengths[row] for row in earlier if row < sequence[0])
            assert before + lengths[sequence[0]] > 10


PACKED_ROWS = [
    {"input_ids": [5, 6, 7], "labels": [8, 1], "task_id": 0},
    {"input_ids": [9, 10], "labels": [1], "task_id": 2},
    {"input_ids": [11], "labels": [12, 13, 1], "task_id": 1},
]


def test_rows_follow_one_another():
    batch = PackedCollator(0, True, packed_length=9)(PACKED_ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 1, 9, 10, 1], [11, 12, 13, 1, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [
        [-100, -100, -100, 8, 1, -100, -100, 1],
        [-100, 12, 13, 1, -100, -100, -100, -100],
    ]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 4 + [0] * 4]
    assert batch["task_ids"].tolist() == [0, 2, 1]
    assert batch["segments"] == [5, 3, 8]  # the last one with what pads its sequence


@given(LENGTHS, st.integers(10, 40))
def test_a_packed_batch_holds_the_rows_of_a_padded_one(lengths, packed_length):
    rows = [
        {"input_ids": [3] * (n - n // 2), "labels": [row + 4] * (n // 2), "task_id": row}
        for row, n in enumerate(lengths)
    ]
    batch = PackedCollator(0, True, packed_length=packed_length)(rows)
    padded = TrainCollator(0, True)(rows)
    assert batch["input_ids"].shape[1] <= packed_length
    assert sum(batch["segments"]) == batch["input_ids"].numel()
    assert batch["attention_mask"].sum() == padded["attention_mask"].sum()
    ids = batch["input_ids"].flatten().split(batch["segments"])
    for row, own in zip(batch["task_ids"].tolist(), ids, strict=True):
        whole = [*rows[row]["input_ids"], *rows[row]["labels"]]
        assert own[: len(whole)].tolist() == whole
        assert not own[len(whole) :].any()
