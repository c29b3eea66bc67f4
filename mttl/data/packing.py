"""Several rows in one sequence: which rows share one, and how they are laid out.

Rows are put into sequences first-fit: each into the first sequence that has room for it. A batch
holds the same rows packed or not; what changes is how many positions are padding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mttl.data.collate import TrainCollator, pad, padded_inputs
from mttl.routing.token.masks import IGNORED


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
