"""Rows to padded batches, for encoder-decoder and for decoder-only models.

A prepared row holds the ids of the prompt (`input_ids`) and of the answer with its end
(`labels`). An encoder-decoder reads the first and predicts the second. A decoder-only model reads
both in one sequence, prompt + answer, and its loss is on the answer only: labels are -100 on the
prompt and on the padding.

Training pads on the right. To generate, a decoder-only model needs its prompts padded on the
left, so that all answers start at the same position.

Masks come from lengths, never from comparing ids: a tokenizer without a padding token pads with
its end token, which real sequences hold too.
"""

from collections.abc import Mapping, Sequence
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


def pad_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id to pad with: the tokenizer's own, else its end token's."""
    token_id: Any = tokenizer.pad_token_id
    return int(tokenizer.eos_token_id if token_id is None else token_id)  # pyright: ignore


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
