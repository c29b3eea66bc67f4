"""The interface of heads, and what they share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from mttl.io.errors import require_one_of
from mttl.routing.token.masks import IGNORED

ScoredParts = list[tuple[str, float]]  # parts of an answer, or labels, with scores


@dataclass(frozen=True)
class HeadBatch:
    """Tensors that heads read besides hidden states."""

    mask: Bool[Tensor, "B L"]  # true at the tokens of a text, false at padding
    word_starts: Int[Tensor, "B W"]  # first sub-word of every word; -1 after the last word
    targets: Mapping[str, Tensor] = field(default_factory=dict)  # of `Head.targets`, if any

    def words(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B W D"]:
        """Return the hidden states of words; those after the last word are arbitrary."""
        places = self.word_starts.clamp(min=0).unsqueeze(-1)
        return hidden.gather(1, places.expand(-1, -1, hidden.shape[-1]))

    def n_words(self) -> list[int]:
        """Return the number of words of each example."""
        return (self.word_starts >= 0).sum(1).tolist()


class Head(nn.Module, ABC):
    """Base class of modules that turn hidden states into answers.

    Attributes:
        labels: All tags, labels or relations.
    """

    labels: list[str]

    @abstractmethod
    def targets(self, answers: Sequence[str]) -> dict[str, Tensor]:
        """Return answers as tensors; ValueError for an answer that the head cannot give."""

    @abstractmethod
    def forward(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Any:
        """Return the scores of possible answers."""

    @abstractmethod
    def losses(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W"]:
        """Return the loss of each word, 0 after the last; of a text, a single one (W is 1)."""

    @abstractmethod
    def answers(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[str]:
        """Return the best answer of each example."""

    def scored(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[ScoredParts]:
        """Return tags of words with probabilities; all labels of a text, best first; or a number.

        By default, heads have no probabilities, and scores are not a number (NaN).
        """
        answers = self.answers(hidden, batch)
        return [[(part, math.nan) for part in answer.split()] for answer in answers]


def places_of(names: Sequence[str], known: Sequence[str], what: str) -> list[int]:
    """Return the places of names in a list; ValueError for an unknown name."""
    places = {name: place for place, name in enumerate(known)}
    for name in names:
        if name not in places:
            require_one_of(known, **{what: name})
    return [places[name] for name in names]


def padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "B W"]:
    """Return rows of integers as one tensor, filled up with the ignored label."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], True, IGNORED)


def word_losses(
    scores: Float[Tensor, "B W C"], targets: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Return the cross-entropy of each word; 0 for ignored targets."""
    return cross_entropy(scores.float().mT, targets, ignore_index=IGNORED, reduction="none")
