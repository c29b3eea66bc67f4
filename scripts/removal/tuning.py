"""Full fine-tuning of a small model on rows, its answers, and its Fisher information."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mttl.aggregation.fisher import diagonal_fisher
from mttl.data.collate import pad as pad_rows
from mttl.data.collate import pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.merging.likelihood import answer_log_likelihood, likelihood_batch
from mttl.models.generation import generate_texts
from mttl.models.teacher_forcing import forced_logits
from mttl.shapes import IGNORED
from mttl.training.loss import answer_losses, global_mean
from removal.planted import Row

MOST_TOKENS = 48


@dataclass(frozen=True)
class Tuner:
    """A model's tokenizer and how it is trained.

    Args:
        tokenizer: The model's.
        batch_size: Rows per step.
        seed: Of the order of rows.
    """

    tokenizer: PreTrainedTokenizerBase
    batch_size: int
    seed: int

    def batch(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return rows as a padded batch."""
        encoder = TextEncoder(
            self.tokenizer,
            decoder_only=False,
            max_input_length=MOST_TOKENS,
            max_output_length=MOST_TOKENS,
        )
        inputs = padded_inputs(
            encoder.prompts([row.text for row in rows]), pad_id_of(self.tokenizer)
        )
        labels = pad_rows(encoder.answers([row.answer for row in rows]), IGNORED)
        return {**inputs, "labels": labels}

    def batches(self, rows: Sequence[Row], n_steps: int) -> Iterator[dict[str, Tensor]]:
        """Yield batches of rows in an order drawn anew for every pass."""
        generator = torch.Generator().manual_seed(self.seed)
        order: list[int] = []
        for _ in range(n_steps):
            while len(order) < self.batch_size:
                order += torch.randperm(len(rows), generator=generator).tolist()
            taken, order = order[: self.batch_size], order[self.batch_size :]
            yield self.batch([rows[place] for place in taken])

    def train(
        self,
        model: PreTrainedModel,
        rows: Sequence[Row],
        *,
        n_steps: int,
        lr: float,
        on_step: Callable[[], object],
    ) -> None:
        """Fine-tune all weights in place: AdamW, 6 % warm-up, linear decay."""
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01
        )
        warmup = max(1, round(0.06 * n_steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min((step + 1) / warmup, (n_steps - step) / max(1, n_steps - warmup)),
        )
        model.train()
        for batch in self.batches(rows, n_steps):
            logits, labels, places = forced_logits(model, batch)
            loss = global_mean(answer_losses(logits, labels, places), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            on_step()
        model.eval()

    @torch.no_grad()
    def answers(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[str]:
        """Answer greedily."""
        model.eval()
        batch = self.batch(rows)
        longest = int((batch.pop("labels") != IGNORED).sum(1).max())
        generate: Any = model.generate
        return generate_texts(
            *(generate, self.tokenizer, batch),
            decoder_only=False,
            max_new_tokens=longest + 2,
            do_sample=False,
        )

    def fisher(
        self,
        model: PreTrainedModel,
        rows: Sequence[Row],
        *,
        at_once: int,
        on_rows: Callable[[int], object],
    ) -> dict[str, Tensor]:
        """Return the empirical Fisher information of all weights, from each row's own gradient."""
        batches = (
            likelihood_batch(model, self.batch(rows[start : start + at_once]))
            for start in range(0, len(rows), at_once)
        )
        return diagonal_fisher(
            model,
            answer_log_likelihood(model, traceable=at_once > 1),
            batches,
            at_once=at_once,
            on_batch=on_rows,
        )
