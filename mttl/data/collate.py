"""Collate rows into padded batches, for encoder–decoder and decoder-only models.

A prepared row has the ids of the prompt (`input_ids`) and of the answer with its end (`labels`). An
encoder–decoder reads the prompt and predicts the answer. A decoder-only model reads both as one
sequence; labels are -100 on prompt and padding.

Training pads on the right. Generation with decoder-only models pads prompts on the left, so that
all answers start at the same position.

Masks are derived from lengths, because tokenizers without a padding token pad with the end token,
which also occurs in sequences.

Several rows may be packed into one sequence, first-fit. A batch has the same rows with and without
packing, but less padding.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from mttl.routing.token.masks import IGNORED
from mttl.tasks.task import CHOICES


@dataclass(frozen=True)
class TrainCollator:
    """Collates prepared rows into input_ids, attention_mask, labels and task_ids."""

    pad_id: int
    decoder_only: bool

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask`, `labels` (each B L, long) and `task_ids` (B,).

        If rows have options of their own, `choices` has them, and None for other rows.
        """
        prompts = [row["input_ids"] for row in rows]
        answers = [row["labels"] for row in rows]
        inputs, labels = prompts, answers
        if self.decoder_only:
            inputs = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
            labels = [[IGNORED] * len(p) + [*a] for p, a in zip(prompts, answers, strict=True)]
        columns = [row.get("columns") for row in rows]
        choices = [json.loads(own).get(CHOICES) if own else None for own in columns]
        return {
            **({"choices": choices} if any(choices) else {}),
            **padded_inputs(inputs, self.pad_id),
            "labels": pad(labels, IGNORED),
            "task_ids": torch.tensor([row["task_id"] for row in rows]),
        }

    def n_targets(self, batch: Mapping[str, Any]) -> int:
        """Return the number of predicted tokens of a batch."""
        labels = batch["labels"][:, 1:] if self.decoder_only else batch["labels"]
        return int((labels != IGNORED).sum())


@dataclass(frozen=True)
class EvalCollator(TrainCollator):
    """Collates a training batch with additional fields for generation and scoring.

    `generation_inputs` ({input_ids, attention_mask} of the prompts), `references`
    (list[list[str]]), `inputs` (list[str]), `samples` (list[int]) and `rows` (list[int]: indices in
    the prepared data, for restoring the order).

    An empty batch has one dummy row, so that all processes can run the model together; its lists
    are empty.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a training batch with the additional fields."""
        shown = rows or [{"input_ids": [self.pad_id], "labels": [self.pad_id], "task_id": 0}]
        prompts = [row["input_ids"] for row in shown]
        return {
            **super().__call__(shown),
            "generation_inputs": padded_inputs(prompts, self.pad_id, left=self.decoder_only),
            **scored_fields(rows),
        }


def scored_fields(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of an evaluation batch for scoring."""
    return {
        "references": [list(row["references"]) for row in rows],
        "inputs": [row["input"] for row in rows],
        "sources": [
            {
                "input": row["input"][row["prefix_length"] :],
                "columns": json.loads(row["columns"] or "{}"),
            }
            for row in rows
        ],
        "samples": [row["sample"] for row in rows],
        "rows": [row["row"] for row in rows],
    }


class PackedSequences:
    """Sequences of limited length into which rows are packed."""

    def __init__(self, length: int, most: int | None = None) -> None:
        self.length, self.most = length, most
        self.rows: list[list[int]] = []
        self.room: list[int] = []

    def put(self, row: int, length: int) -> bool:
        """Put a row into the first sequence with enough room; return False if there is none."""
        for place, room in enumerate(self.room):
            if length <= room:
                self.rows[place].append(row)
                self.room[place] -= length
                return True
        if self.most is not None and len(self.rows) >= self.most:
            return False
        self.rows.append([row])
        self.room.append(self.length - length)
        return True

    @classmethod
    def of(cls, lengths: Iterable[int], length: int) -> list[list[int]]:
        """Return the row indices of each sequence."""
        sequences = cls(length)
        for row, tokens in enumerate(lengths):
            sequences.put(row, tokens)
        return sequences.rows


@dataclass(frozen=True)
class PackedCollator(TrainCollator):
    """Collates several rows per sequence, for decoder-only models."""

    packed_length: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of `TrainCollator` for S sequences, and the positions of their rows.

        `position_ids` (S L) restart at 0 for every row, from which transformers derives masks
        between rows; they are 0 on padding. `task_ids` (B,) are those of the rows, sequence by
        sequence, and `segments` (B ints) their numbers of tokens; padding is counted with the last
        row.
        """
        tokens = [[*row["input_ids"], *row["labels"]] for row in rows]
        packed = PackedSequences.of(map(len, tokens), self.packed_length)
        longest = max(sum(len(tokens[row]) for row in sequence) for sequence in packed)
        targets = [[*[IGNORED] * len(row["input_ids"]), *row["labels"]] for row in rows]
        ids, labels, positions, segments = [], [], [], []
        for sequence in packed:
            ids.append([token for row in sequence for token in tokens[row]])
            positions.append([place for row in sequence for place in range(len(tokens[row]))])
            labels.append([label for row in sequence for label in targets[row]])
            segments += [len(tokens[row]) for row in sequence]
            segments[-1] += longest - len(ids[-1])
        task_ids = [rows[row]["task_id"] for sequence in packed for row in sequence]
        return {
            **padded_inputs(ids, self.pad_id),
            "position_ids": pad(positions, 0),
            "labels": pad(labels, IGNORED),
            "task_ids": torch.tensor(task_ids),
            "segments": segments,
        }


def pad_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the padding id: the tokenizer's own or its end token; else raise a `ValueError`."""
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)  # pyright: ignore[reportArgumentType]
    raise ValueError(
        f"{type(tokenizer).__name__} has no padding token and no end token; set its pad_token"
    )


def padded_inputs(
    sequences: Sequence[Sequence[int]], pad_id: int, left: bool = False
) -> dict[str, Tensor]:
    """Return padded `input_ids` (B L) and `attention_mask` (B L), 1 on every real token."""
    ones = [[1] * len(sequence) for sequence in sequences]
    return {"input_ids": pad(sequences, pad_id, left), "attention_mask": pad(ones, 0, left)}


def pad(sequences: Sequence[Sequence[int]], value: int, left: bool = False) -> Int[Tensor, "B L"]:
    """Pad sequences to the length of the longest, on the right or on the left."""
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    side = "left" if left else "right"
    return pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
