"""Training objectives for rows of a task or raw text, for any model of transformers.

| objective | model | a row |
|---|---|---|
| `TaskObjective` | encoder–decoder or decoder-only | an input and its answer |
| `CausalText` | decoder-only | each token, from the previous ones |
| `MaskedText` | encoder-only | 15 % of the tokens, from the others |
| `RestoredText` | encoder–decoder | the text, from one with masked spans |
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
# Fractions of the predicted tokens that a masked language model sees as a mask or another token.
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

    For an encoder–decoder, labels are ids of the answer; otherwise they are as long as the inputs,
    with -100 for positions without a loss. ``masked`` labels belong to their own positions instead
    of the next ones.
    """
    device = next(model.parameters()).device
    batch = {key: value.to(device) for key, value in padded_inputs(inputs, pad_id).items()}
    wanted = pad(labels, IGNORED).to(device)
    if masked:
        return global_mean(token_losses(model(**batch).logits, wanted), wanted)
    logits, wanted, places = forced_logits(model, {**batch, "labels": wanted})
    return global_mean(answer_losses(logits, wanted, places), wanted)


class TaskObjective:
    """The negative log-likelihood per token of answers to inputs."""

    def __init__(self, encoder: TextEncoder, rows: Sequence[tuple[str, str]]) -> None:
        self._prompts = encoder.prompts([row[0] for row in rows])
        self._answers = encoder.answers([row[1] for row in rows])
        self._pad_id = pad_id_of(encoder.tokenizer)
        self.n_rows = len(rows)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss per token of the answers; the seed has no effect."""
        prompts = [self._prompts[row] for row in rows]
        answers = [self._answers[row] for row in rows]
        if model.config.is_encoder_decoder:  # type: ignore[union-attr]
            return language_loss(model, prompts, answers, self._pad_id)
        inputs = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        labels = [[IGNORED] * len(p) + [*a] for p, a in zip(prompts, answers, strict=True)]
        return language_loss(model, inputs, labels, self._pad_id)


class _Text:
    """Lines of raw text as ids; `ConfigError` if there is none, or ``max_length`` is too small."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> None:
        before, after = special_ids(tokenizer)
        room = max_length - len(before) - len(after)
        if room < 1:
            raise ConfigError(
                f"--max-length ({max_length}) leaves no tokens for the text; raise it"
            )
        encoded = UserText(tokenizer).encode(texts) if texts else []  # tokenizers fail for []
        self.before, self.after = before, after
        self.lines: list[list[int]] = [ids[:room] for ids in encoded if ids]
        if not self.lines:
            raise ConfigError("the text has no line with tokens")
        self.n_rows = len(self.lines)
        self.pad_id = pad_id_of(tokenizer)

    def whole(self, row: int) -> list[int]:
        return [*self.before, *self.lines[row], *self.after]


class CausalText(_Text):
    """Raw text from left to right, with the end token if the tokenizer has one."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> None:
        super().__init__(tokenizer, texts, max_length)
        end: Any = tokenizer.eos_token_id
        if end is not None and end not in self.after:
            self.after = [*self.after, end]
            self.lines = [line[: max_length - len(self.before) - 1] for line in self.lines]

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss per token; the seed has no effect."""
        lines = [self.whole(row) for row in rows]
        return language_loss(model, lines, lines, self.pad_id)


class MaskedText(_Text):
    """Masked language modelling of raw text, as BERT.

    Of the chosen tokens, 80 % are replaced by the mask, 10 % by another token, and 10 % stay.

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
        """Return the mean loss per chosen token; the seed determines the choice."""
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
    """Raw text restored from one in which each of some spans is replaced by a mask.

    Spans have 1 to 3 tokens and cover 30 % of a line. ``mask`` is the text of the mask if it is not
    the tokenizer's mask token or first sentinel.

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
        """Return the mean loss per token of the whole text; the seed determines the spans."""
        generator = random.Random(seed)
        lines = [self.corrupt(self.lines[row], generator) for row in rows]
        inputs = [[*self.before, *line, *self.after] for line in lines]
        return language_loss(model, inputs, [self.whole(row) for row in rows], self.pad_id)

    def corrupt(self, line: Sequence[int], generator: random.Random) -> list[int]:
        """Return a line with spans replaced by masks; a span may include masks."""
        ids = list(line)
        left = round(RESTORED * len(ids))
        while left > 0:
            length = min(left, generator.randint(1, 3), len(ids))
            start = generator.randrange(len(ids) - length + 1)
            ids[start : start + length] = [self._mask]
            left -= length
        return ids


def mask_id(tokenizer: PreTrainedTokenizerBase, text: str | None) -> int:
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
    sentinel: Any = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    if sentinel is not None and sentinel != tokenizer.unk_token_id:
        return int(sentinel)
    raise ConfigError(f"{type(tokenizer).__name__} has no mask token; set its text by --mask")
