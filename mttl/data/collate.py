"""Rows to padded batches, for encoder-decoder and for decoder-only models.

A prepared row holds the ids of the prompt (`input_ids`) and of the answer with its end
(`labels`). An encoder-decoder reads the first and predicts the second. A decoder-only model reads
both in one sequence, prompt + answer, and its loss is on the answer only: labels are -100 on the
prompt and on the padding.

Training pads on the right. To generate, a decoder-only model needs its prompts padded on the
left, so that all answers start at the same position.

Masks come from lengths, never from comparing ids: a tokenizer without a padding token pads with
its end token, which real sequences hold too.

Several rows may be packed into one sequence, first-fit: each into the first one that has room for
it. A batch holds the same rows packed or not; what changes is how many positions are padding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from mttl.routing.token.masks import IGNORED


@dataclass(frozen=True)
class TrainCollator:
    """Makes {input_ids, attention_mask, labels, task_ids} of a list of prepared rows."""

    pad_id: int
    decoder_only: bool

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask`, `labels` (each B L, long) and `task_ids` (B,)."""
        prompts = [row["input_ids"] for row in rows]
        answers = [row["labels"] for row in rows]
        inputs, labels = prompts, answers
        if self.decoder_only:
            inputs = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
            labels = [[IGNORED] * len(p) + [*a] for p, a in zip(prompts, answers, strict=True)]
        return {
            **padded_inputs(inputs, self.pad_id),
            "labels": pad(labels, IGNORED),
            "task_ids": torch.tensor([row["task_id"] for row in rows]),
        }

    def n_targets(self, batch: Mapping[str, Any]) -> int:
        """Return how many tokens of a batch a model predicts: none stands before a first one."""
        labels = batch["labels"][:, 1:] if self.decoder_only else batch["labels"]
        return int((labels != IGNORED).sum())


@dataclass(frozen=True)
class EvalCollator(TrainCollator):
    """Adds to a training batch what generation and scoring need.

    `generation_inputs` ({input_ids, attention_mask}: the prompts alone), `references`
    (list[list[str]]), `inputs` (list[str]), `samples` (list[int]) and `rows` (list[int], each
    row's place in the prepared data, to put predictions back into the order of the files).

    A batch without rows holds one that nobody asked for, so that the model has something to run on
    where other processes run it; its lists are empty.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a training batch and the fields above."""
        shown: Sequence[Mapping[str, Any]] = rows
        if not rows:
            shown = [{"input_ids": [self.pad_id], "labels": [self.pad_id], "task_id": 0}]
        prompts = [row["input_ids"] for row in shown]
        return {
            **super().__call__(shown),
            "generation_inputs": padded_inputs(prompts, self.pad_id, left=self.decoder_only),
            "references": [list(row["references"]) for row in rows],
            **{f"{name}s": [row[name] for row in rows] for name in ("input", "sample", "row")},
        }


class PackedSequences:
    """Sequences of limited length that rows are put into one by one."""

    def __init__(self, length: int, most: int | None = None) -> None:
        self.length, self.most = length, most
        self.rows: list[list[int]] = []
        self.room: list[int] = []

    def put(self, row: int, length: int) -> bool:
        """Put a row into the first sequence with room for it; False where none may have it."""
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
        """Return the numbers of the rows of each sequence."""
        sequences = cls(length)
        for row, tokens in enumerate(lengths):
            sequences.put(row, tokens)
        return sequences.rows


@dataclass(frozen=True)
class PackedCollator(TrainCollator):
    """Makes batches in which rows follow one another in one sequence, for decoder-only models."""

    packed_length: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what `TrainCollator` does for S sequences, and where their rows are.

        Positions (`position_ids`, S L) restart at 0 with every row: by them transformers' masks
        separate rows. Those of padding are 0. `task_ids` (B,) are of the rows, sequence by
        sequence, and `segments` (B ints) the tokens of each; what pads a sequence is counted with
        its last row.
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
    """Return the id to pad with: the tokenizer's own, else its end token's, else a `ValueError`."""
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)  # pyright: ignore[reportArgumentType]
    raise ValueError(
        f"{type(tokenizer).__name__} has neither a padding nor an end token; set its pad_token"
    )


def padded_inputs(
    sequences: Sequence[Sequence[int]], pad_id: int, left: bool = False
) -> dict[str, Tensor]:
    """Return `input_ids` (B L) and `attention_mask` (B L), 1 on every real token."""
    ones = [[1] * len(sequence) for sequence in sequences]
    return {"input_ids": pad(sequences, pad_id, left), "attention_mask": pad(ones, 0, left)}


def pad(sequences: Sequence[Sequence[int]], value: int, left: bool = False) -> Int[Tensor, "B L"]:
    """Fill all sequences up to the longest, on the right or on the left."""
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    side = "left" if left else "right"
    return pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
