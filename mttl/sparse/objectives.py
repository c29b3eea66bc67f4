"""Training objectives for rows of a task or raw text, for any model of transformers.

| objective | model | a row |
|---|---|---|
| `TaskObjective` | encoder–decoder or decoder-only | an input and its answer |
| `TextObjective` | decoder-only | each token, from the previous ones |
| with `MaskedTokens` | encoder-only | 15 % of the tokens, from the others |
| with `InfilledSpans` | encoder–decoder | the text, from one with masked spans |
"""

import random
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import pad, pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.data.raw_text import Corruption, LineEncoder
from mttl.io.errors import ConfigError
from mttl.models.teacher_forcing import forced_logits
from mttl.routing.token.masks import IGNORED
from mttl.training.loss import answer_losses, global_mean


def language_loss(
    model: nn.Module,
    inputs: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    pad_id: int,
) -> Float[Tensor, ""]:
    """Return the mean loss of the labelled tokens.

    For an encoder–decoder, labels are ids of the answer; otherwise they are as long as the inputs,
    with -100 for positions without a loss.
    """
    device = next(model.parameters()).device
    batch = {key: value.to(device) for key, value in padded_inputs(inputs, pad_id).items()}
    wanted = pad(labels, IGNORED).to(device)
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


class TextObjective:
    """The loss of lines of raw text: causal, or of predicting what a ``corruption`` hides.

    Raises a `ConfigError` if no line has tokens, or ``max_length`` is too small.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
        corruption: Corruption | None = None,
    ) -> None:
        self.corruption, causal = corruption, corruption is None
        self._encoder = LineEncoder(tokenizer, max_length, causal=causal, setting="--max-length")
        self.lines: list[list[int]] = [ids for ids in self._encoder.encode(texts) if ids]
        if not self.lines:
            raise ConfigError("the text has no line with tokens")
        self.n_rows = len(self.lines)
        self.pad_id = pad_id_of(tokenizer)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss per predicted token; the seed determines the corruption."""
        inputs = labels = [self._encoder.whole(self.lines[row]) for row in rows]
        if self.corruption is not None:
            draw = random.Random(seed)
            pairs = [self.corruption.pair(self.lines[row], draw) for row in rows]
            inputs, labels = map(list, zip(*pairs, strict=True))
        return language_loss(model, inputs, labels, self.pad_id)
