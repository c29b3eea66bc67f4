"""Raw text for language modelling: lines as ids, their corruption, and batches of them.

| model | reads | predicts |
|---|---|---|
| decoder-only | the line | each token, from the previous ones |
| encoder | the line with masked tokens | these tokens |
| encoder–decoder with sentinels (T5) | the line without some spans | these spans |
| other encoder–decoder (BART) | the line with masks for some spans | the line |
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import TrainCollator, scored_fields
from mttl.data.encode import special_ids
from mttl.data.user_text import UserText
from mttl.io.errors import ConfigError
from mttl.routing.token.masks import IGNORED
from mttl.tasks.rows import Row

MASKED, REMOVED, INFILLED = 0.15, 0.15, 0.3  # fractions of the tokens
MEAN_SPAN = 3  # tokens of a removed span
# Fractions of the predicted tokens that a masked language model sees as a mask or another token.
SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.8, 0.1


class _Lines:
    """Puts a tokenizer's special tokens around lines."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.before, self.after = special_ids(tokenizer)

    def whole(self, ids: Sequence[int]) -> list[int]:
        """Return ids with the special tokens around them."""
        return [*self.before, *ids, *self.after]


class LineEncoder(_Lines):
    """Encodes lines, which are cut at their end; ``causal`` ones have the tokenizer's end token.

    Raises a `ConfigError` if ``max_length``, the value of ``setting``, leaves no room for text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        causal: bool,
        setting: str = "data.max_input_length",
    ) -> None:
        super().__init__(tokenizer)
        end: Any = tokenizer.eos_token_id
        if causal and end is not None and end not in self.after:
            self.after = [*self.after, end]
        self.causal, self.room = causal, max_length - len(self.before) - len(self.after)
        if self.room < 1:
            raise ConfigError(f"{setting} ({max_length}) leaves no tokens for the text; raise it")
        self._text = UserText(tokenizer)

    def encode(self, texts: Sequence[str], lost: list[int] | None = None) -> list[list[int]]:
        """Return ids without special tokens; ``lost`` receives the numbers of cut ids."""
        encoded = self._text.encode(texts) if texts else []  # tokenizers fail for []
        if lost is not None:
            lost += [len(ids) - self.room for ids in encoded if len(ids) > self.room]
        return [ids[: self.room] for ids in encoded]

    def columns(
        self, forms: Any, rows: Sequence[Row], prefixes: Any, lost: list[int]
    ) -> dict[str, list[Any]]:
        """Return the columns of prepared rows; causal lines are answers to their first token."""
        lines = [self.whole(ids) for ids in self.encode([row.input for row in rows], lost)]
        first = 1 if self.causal else None
        return {
            "input_ids": [line[:first] for line in lines],
            "labels": [line[1:] if self.causal else [] for line in lines],
        }


class Corruption(_Lines, ABC):
    """Makes a pair of inputs and labels of a line, by draws of a generator."""

    @abstractmethod
    def pair(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        """Return inputs and labels of the ids of a line without special tokens."""

    def n_labels(self, length: int) -> int:
        """Return the length of a decoder's labels for a line with special tokens."""
        return length


class MaskedTokens(Corruption):
    """Masked language modelling: 15 % of the tokens are predicted.

    Of these, 80 % are replaced by the mask, 10 % by another token, and 10 % stay.

    References:
        Devlin et al., *BERT*, NAACL 2019, arXiv:1810.04805, section 3.1.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        self._mask = mask_id(tokenizer)
        special = set(tokenizer.all_special_ids)
        self._others = [token for token in range(len(tokenizer)) if token not in special]

    def pair(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        n_chosen = min(len(ids), max(1, round(MASKED * len(ids))))
        chosen = set(draw.sample(range(len(ids)), n_chosen))
        shown = [self._show(token, draw) if i in chosen else token for i, token in enumerate(ids)]
        wanted = [token if i in chosen else IGNORED for i, token in enumerate(ids)]
        around = [IGNORED] * len(self.before), [IGNORED] * len(self.after)
        return self.whole(shown), [*around[0], *wanted, *around[1]]

    def n_labels(self, length: int) -> int:
        return 0

    def _show(self, token: int, draw: random.Random) -> int:
        at = draw.random()
        if at < SHOWN_AS_MASK:
            return self._mask
        return draw.choice(self._others) if at < SHOWN_AS_MASK + SHOWN_AS_OTHER else token


class InfilledSpans(Corruption):
    """Text infilling: the line is restored from one with a mask for each of some spans.

    Spans have 1 to 3 tokens, cover 30 % of the line and may include masks. ``mask`` is the text of
    the mask if it is not the tokenizer's mask token or first sentinel.

    References:
        Lewis et al., *BART*, ACL 2020, arXiv:1910.13461, section 2.2.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mask: str | None = None) -> None:
        super().__init__(tokenizer)
        self._mask = mask_id(tokenizer, mask)

    def pair(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        shown, left = list(ids), round(INFILLED * len(ids))
        while left > 0:
            length = min(left, draw.randint(1, 3), len(shown))
            start = draw.randrange(len(shown) - length + 1)
            shown[start : start + length] = [self._mask]
            left -= length
        return self.whole(shown), self.whole(ids)


class RemovedSpans(Corruption):
    """Span corruption: 15 % of the tokens, in spans of 3 on average, are replaced by sentinels.

    The labels are each sentinel with its span. Lengths of spans and of the kept segments between
    them are random. T5's code always removes the end of a line, which is most of a short one; here
    a kept segment may follow.

    References:
        Raffel et al., arXiv:1910.10683, section 3.1.4; `random_spans_noise_mask` of their code.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        self._sentinels = sentinel_ids(tokenizer)

    def pair(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
        removed, n_spans = self._sizes(len(ids))
        first, *kept = _segments(len(ids) - removed + 2, n_spans + 1, draw)  # ends may be empty
        shown, wanted, at = list(ids[: first - 1]), list[int](), first - 1
        spans = _segments(removed, n_spans, draw)
        for sentinel, span, after in zip(self._sentinels, spans, kept, strict=False):
            wanted += [sentinel, *ids[at : at + span]]
            at += span
            shown += [sentinel, *ids[at : at + after]]
            at += after
        return self.whole(shown), self.whole(wanted)

    def n_labels(self, length: int) -> int:
        around = len(self.before) + len(self.after)
        return sum(self._sizes(length - around)) + around

    def _sizes(self, length: int) -> tuple[int, int]:
        """Return the numbers of removed tokens and of spans; a single token is removed."""
        removed = min(max(round(REMOVED * length), 1), length)
        return removed, min(max(round(removed / MEAN_SPAN), 1), len(self._sentinels))


def _segments(total: int, n: int, draw: random.Random) -> list[int]:
    """Return n random lengths of at least 1 with a given sum; a single one may be 0."""
    ends = [0, *sorted(draw.sample(range(1, total), n - 1)), total]
    return [end - start for start, end in pairwise(ends)]


def corruption_of(tokenizer: PreTrainedTokenizerBase, *, encoder: bool) -> Corruption:
    """Return the corruption for an encoder or an encoder–decoder."""
    if encoder:
        return MaskedTokens(tokenizer)
    return RemovedSpans(tokenizer) if sentinel_ids(tokenizer) else InfilledSpans(tokenizer)


def sentinel_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of T5's sentinels in order; empty if a tokenizer has none."""
    vocabulary, found = tokenizer.get_vocab(), list[int]()
    while (name := f"<extra_id_{len(found)}>") in vocabulary:
        found.append(vocabulary[name])
    return found


def mask_id(tokenizer: PreTrainedTokenizerBase, text: str | None = None) -> int:
    """Return the id of a mask: of a given text, the mask token, or T5's first sentinel.

    Raises ConfigError if there is none, or the text is not a single token.
    """
    if text is not None:
        ids: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise ConfigError(f"--mask ('{text}') has {len(ids)} tokens; it must be one token")
        return ids[0]
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)  # type: ignore[arg-type]
    if sentinels := sentinel_ids(tokenizer):
        return sentinels[0]
    raise ConfigError(
        f"{type(tokenizer).__name__} has no mask token; use a tokenizer with one, or for mttl "
        "sparse set its text by --mask"
    )


@dataclass(frozen=True)
class TextCollator(TrainCollator):
    """Collates lines, corrupted if the model is not decoder-only; nothing is generated."""

    corruption: Corruption | None = None
    evaluated: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]], place: str = "") -> dict[str, Any]:
        """Return a batch of `TrainCollator`, for evaluation with the fields for scoring.

        Draws depend only on ``place`` and the line, so all evaluations have the same. An empty
        batch has one dummy row.
        """
        shown = rows or [{"input_ids": [self.pad_id], "labels": [self.pad_id], "task_id": 0}]
        if rows and (corruption := self.corruption) is not None:
            shown = []
            for row in rows:
                line = row["input_ids"]
                ids = line[len(corruption.before) : len(line) - len(corruption.after)]
                inputs, labels = corruption.pair(ids, random.Random(f"{place} {line}"))
                shown.append({"input_ids": inputs, "labels": labels, "task_id": row["task_id"]})
        return super().__call__(shown) | (scored_fields(rows) if self.evaluated else {})


def texts_of_losses(losses: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """Return the losses (B L) of each row's predicted tokens, separated by blanks."""
    return [
        " ".join(f"{value:.5g}" for value in own[wanted != IGNORED].tolist())
        for own, wanted in zip(losses, labels, strict=True)
    ]
