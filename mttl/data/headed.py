"""Encode and collate rows of tasks with heads: words with tags, labels of texts, trees of words.

An input is words separated by blanks, or for labels a text, or two texts around ``[SEP]``. The
answer stays a text (`mttl.heads`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import pad, padded_inputs, scored_fields
from mttl.data.encode import PromptPrefix, special_ids, wants_leading_space
from mttl.data.user_text import UserText
from mttl.io.errors import TaskError
from mttl.io.reading import shown
from mttl.routing.token.masks import IGNORED
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import Row


class HeadedRow(NamedTuple):
    """An encoded input."""

    input_ids: list[int]  # with the tokenizer's special tokens around them
    word_starts: list[int]  # position of each word's first id; empty for labels
    second: int  # position of a pair's second text, if the model tells two texts apart; else 0


class HeadedEncoder:
    """Encodes inputs of tasks with heads for any model; long texts are cut at their end.

    Args:
        tokenizer: Tokenizer of the backbone.
        max_length: Maximum ids of an input, special tokens included.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.before, self.after = special_ids(tokenizer)
        self._text = UserText(tokenizer)
        self._lead = " " if wants_leading_space(tokenizer) else ""
        self._unknown: Any = tokenizer.unk_token_id or 0
        self._types = "token_type_ids" in tokenizer.model_input_names
        self._between = _between(tokenizer, [*self.before], [*self.after])
        self._known: dict[str, list[int]] = {}

    def columns(
        self,
        forms: Sequence[HeadForm],
        rows: Sequence[Row],
        prefixes: Sequence[PromptPrefix],
        lost: list[int],
    ) -> dict[str, list[Any]]:
        """Return the columns of prepared rows; ``lost`` receives the numbers of cut ids.

        Raises a `TaskError` if an answer does not fit its input, or a text with a tree is cut.
        """
        found: dict[str, list[Any]] = {name: [] for name in (*HeadedRow._fields, "labels")}
        for form, row, prefix in zip(forms, rows, prefixes, strict=True):
            form.check(row)
            encoded, n_cut = self.encode(form, row.input, prefix)
            lost += [n_cut] * bool(n_cut)
            for name, value in (encoded._asdict() | {"labels": []}).items():
                found[name].append(value)
        return found

    def encode(self, form: HeadForm, text: str, prefix: PromptPrefix) -> tuple[HeadedRow, int]:
        """Return an encoded input, and the number of ids that were cut, which trees refuse."""
        start, lead = [*self.before], self._lead
        if before := prefix.text.strip():
            start, lead = [*start, *self._ids([before], lead)[0]], " "
        room = self.max_length - len(start) - len(self.after)
        if form.kind == "label":
            first, *rest = self._ids(text.split(" [SEP] ", 1), lead)
            second = [*self._between, *rest[0]] if rest else []
            lost = max(0, len(first) + len(second) - room)
            for _ in range(lost):
                (first if len(first) >= len(second) else second).pop()
            place = len(start) + len(first) + len(self._between) if second and self._types else 0
            return HeadedRow([*start, *first, *second, *self.after], [], place), lost
        ids, starts = [*start], []
        pieces = self._ids(text.split(), lead)
        for piece in pieces:
            if len(ids) - len(start) + len(piece) > room:
                break
            starts.append(len(ids))
            ids += piece
        lost = sum(map(len, pieces[len(starts) :]))
        if lost and form.kind == "tree":
            raise TaskError(
                f"the text {shown(text)} is longer than {self.max_length} tokens, but any of its "
                "words may be a head; raise data.max_input_length, or --max-length"
            )
        return HeadedRow([*ids, *self.after], starts, 0), lost

    def _ids(self, words: Sequence[str], first: str) -> list[list[int]]:
        """Return at least one id for each word or text; ``first`` is before the first."""
        spaced = [first + words[0], *(" " + word for word in words[1:])]
        if new := [word for word in dict.fromkeys(spaced) if word not in self._known]:
            for word, ids in zip(new, self._text.encode(new), strict=True):
                self._known[word] = ids or [self._unknown]
        return [[*self._known[word]] for word in spaced]


def _between(tokenizer: PreTrainedTokenizerBase, before: list[int], after: list[int]) -> list[int]:
    """Return the ids between two texts: the tokenizer's special tokens, or a line break."""
    one, both = tokenizer("the")["input_ids"], tokenizer("the", "the")["input_ids"]
    text = one[len(before) : len(one) - len(after)]
    ids = both[len(before) + len(text) : len(both) - len(after) - len(text)]
    return list(ids) or list(tokenizer("\n", add_special_tokens=False)["input_ids"])


@dataclass(frozen=True)
class HeadedCollator:
    """Collates prepared rows; for evaluation with the fields of `mttl.data.collate.EvalCollator`.

    An empty batch has one dummy row, and no references.
    """

    pad_id: int
    evaluated: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a batch of B rows with L ids and at most W words.

        Returns:
            ``input_ids``, ``attention_mask`` (B L) and, for pairs of texts, ``token_type_ids``;
            ``word_starts`` (B W), -1 after the last word; ``labels`` (B W), 0 where there is a loss
            and else -100; ``references`` (accepted answers) and ``task_ids`` (B,).
        """
        dummy = {"input_ids": [self.pad_id], "word_starts": [0], "second": 0, "task_id": 0}
        shown: Sequence[Mapping[str, Any]] = rows or [dummy]
        inputs = padded_inputs([row["input_ids"] for row in shown], self.pad_id)
        if any(places := [row["second"] for row in shown]):
            length = inputs["input_ids"].shape[1]
            starts = torch.tensor([place or length for place in places])[:, None]
            types = (torch.arange(length) >= starts).long()
            inputs["token_type_ids"] = types * inputs["attention_mask"]
        inputs["word_starts"] = pad([row["word_starts"] for row in shown], -1)
        counted = [[0] * max(1, len(row["word_starts"])) for row in shown]
        return {
            **inputs,
            "labels": pad(counted, IGNORED),
            "task_ids": torch.tensor([row["task_id"] for row in shown]),
            "references": [list(row["references"]) for row in rows],
            **({"generation_inputs": inputs, **scored_fields(rows)} if self.evaluated else {}),
        }

    def n_targets(self, batch: Mapping[str, Any]) -> int:
        """Return the number of words or texts with a loss in a batch."""
        return int((batch["labels"] != IGNORED).sum())
