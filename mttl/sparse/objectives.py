"""Training objectives for rows of a task or raw text, with any model of transformers.

| objective | model | a row |
|---|---|---|
| `TaskObjective` | encoder–decoder or decoder-only | an input and its answer |
| `CausalText` | decoder-only | each token from those before it |
| `MaskedText` | encoder-only | 15 % of the tokens from the others |
| `RestoredText` | encoder–decoder | the text from one in which spans were replaced by a mask |
"""

import random
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import pad, pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder, special_ids
from mttl.data.user_text import UserText
from mttl.io.errors import ConfigError
from mttl.models.teacher_forcing import forced_logits
from mttl.routing.token.masks import IGNORED
from mttl.training.loss import answer_losses, global_mean, token_losses

MASKED, RESTORED = 0.15, 0.3  # fractions of the tokens
# Of the tokens that a masked language model predicts: these show a mask, those another token.
SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.8, 0.1


def language_loss(
    model: nn.Module,
    inputs: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    pad_id: int,
    *,
    masked: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean loss of the labelled tokens.

    Labels are ids of the answer for an encoder–decoder, else as many as inputs, -100 where nothing
    is predicted; ``masked`` ones are those of their own positions, not of the next ones.
    """
    device = next(model.parameters()).device
    batch = {key: value.to(device) for key, value in padded_inputs(inputs, pad_id).items()}
    wanted = pad(labels, IGNORED).to(device)
    if masked:
        return global_mean(token_losses(model(**batch).logits, wanted), wanted)
    logits, wanted, places = forced_logits(model, {**batch, "labels": wanted})
    return global_mean(answer_losses(logits, wanted, places), wanted)


class TaskObjective:
    """The answer to an input: the negative log-likelihood per token."""

    def __init__(self, encoder: TextEncoder, rows: Sequence[tuple[str, str]]) -> None:
        self._prompts = encoder.prompts([row[0] for row in rows])
        self._answers = encoder.answers([row[1] for row in rows])
        self._pad_id = pad_id_of(encoder.tokenizer)
        self.n_rows = len(rows)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of a token of the answers; nothing is drawn."""
        prompts = [self._prompts[row] for row in rows]
        answers = [self._answers[row] for row in rows]
        if model.config.is_encoder_decoder:  # type: ignore[union-attr]
            return language_loss(model, prompts, answers, self._pad_id)
        inputs = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        labels = [[IGNORED] * len(p) + [*a] for p, a in zip(prompts, answers, strict=True)]
        return language_loss(model, inputs, labels, self._pad_id)


class _Text:
    """Lines of raw text as ids; a `ConfigError` if there is none, or no room for it."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> None:
        before, after = special_ids(tokenizer)
        room = max_length - len(before) - len(after)
        if room < 1:
            raise ConfigError(
                f"--max-length ({max_length}) leaves no room for text between special tokens"
            )
        encoded = UserText(tokenizer).encode(texts) if texts else []  # tokenizers fail on none
        self.before, self.after = before, after
        self.lines: list[list[int]] = [ids[:room] for ids in encoded if ids]
        if not self.lines:
            raise ConfigError("the text has no line to learn from")
        self.n_rows = len(self.lines)
        self.pad_id = pad_id_of(tokenizer)

    def whole(self, row: int) -> list[int]:
        return [*self.before, *self.lines[row], *self.after]


class CausalText(_Text):
    """Raw text from left to right, the end token included where the tokenizer has one."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> None:
        super().__init__(tokenizer, texts, max_length)
        end: Any = tokenizer.eos_token_id
        if end is not None and end not in self.after:
            self.after = [*self.after, end]
            self.lines = [line[: max_length - len(self.before) - 1] for line in self.lines]

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of a token; nothing is drawn."""
        lines = [self.whole(row) for row in rows]
        return language_loss(model, lines, lines, self.pad_id)


class MaskedText(_Text):
    """Raw text with some tokens to guess, as BERT learns.

    Of the chosen tokens 80 % show the mask, 10 % another token, and 10 % themselves.

    References:
        Devlin et al., *BERT*, NAACL 2019, arXiv:1810.04805, section 3.1.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> None:
        super().__init__(tokenizer, texts, max_length)
        self._mask = mask_id(tokenizer, None)
        special = set(tokenizer.all_special_ids)
        self._others = [token for token in range(len(tokenizer)) if token not in special]

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of a chosen token; the seed decides which."""
        generator = random.Random(seed)
        inputs, labels = [], []
        for row in rows:
            line = self.lines[row]
            chosen = set(generator.sample(range(len(line)), max(1, round(MASKED * len(line)))))
            shown = [self._show(t, generator) if i in chosen else t for i, t in enumerate(line)]
            wanted = [t if i in chosen else IGNORED for i, t in enumerate(line)]
            inputs.append([*self.before, *shown, *self.after])
            labels.append([IGNORED] * len(self.before) + wanted + [IGNORED] * len(self.after))
        return language_loss(model, inputs, labels, self.pad_id, masked=True)

    def _show(self, token: int, generator: random.Random) -> int:
        draw = generator.random()
        if draw < SHOWN_AS_MASK:
            return self._mask
        return generator.choice(self._others) if draw < SHOWN_AS_MASK + SHOWN_AS_OTHER else token


class RestoredText(_Text):
    """Raw text restored from one in which spans of tokens were replaced by a mask each.

    Spans have 1 to 3 tokens, as long as letters are tokens; they cover 30 % of a line. ``mask`` is
    their text, where it is not the tokenizer's mask token or first sentinel.

    References:
        Lewis et al., *BART*, ACL 2020, arXiv:1910.13461, section 2.2 (text infilling).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
        *,
        mask: str | None = None,
    ) -> None:
        super().__init__(tokenizer, texts, max_length)
        self._mask = mask_id(tokenizer, mask)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of a token of the whole text; the seed decides on the spans."""
        generator = random.Random(seed)
        lines = [self.corrupt(self.lines[row], generator) for row in rows]
        inputs = [[*self.before, *line, *self.after] for line in lines]
        return language_loss(model, inputs, [self.whole(row) for row in rows], self.pad_id)

    def corrupt(self, line: Sequence[int], generator: random.Random) -> list[int]:
        """Return a line with spans replaced; a span may include masks."""
        ids = list(line)
        left = round(RESTORED * len(ids))
        while left > 0:
            length = min(left, generator.randint(1, 3), len(ids))
            start = generator.randrange(len(ids) - length + 1)
            ids[start : start + length] = [self._mask]
            left -= length
        return ids


def mask_id(tokenizer: PreTrainedTokenizerBase, text: str | None) -> int:
    """Return the id of a text of one token; by default of the mask token, or T5's first sentinel.

    A `ConfigError` says that there is none, or that the text is not one token.
    """
    if text is not None:
        ids: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise ConfigError(f"--mask ('{text}') is {len(ids)} tokens; it must be one")
        return ids[0]
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)  # type: ignore[arg-type]
    sentinel: Any = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    if sentinel is not None and sentinel != tokenizer.unk_token_id:
        return int(sentinel)
    raise ConfigError(
        f"{type(tokenizer).__name__} has no mask token; give the text of one by --mask"
    )
