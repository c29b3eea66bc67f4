"""Answers by rank: of the options of a task, the one that the model finds likeliest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from jaxtyping import Int
from torch import Tensor

from mttl.data.collate import pad_id_of
from mttl.data.encode import TextEncoder
from mttl.inference.choices import choice_ids
from mttl.inference.option_scores import option_scores
from mttl.skills.skilled_model import SkilledModel


@dataclass(frozen=True)
class OptionScorer:
    """The options of tasks, as texts and as ids by task id, and how they are compared.

    With ``per_token``, likelihoods are means over tokens.
    """

    texts: Mapping[int, Sequence[str]]
    ids: Mapping[int, Sequence[Sequence[int]]]
    pad_id: int
    per_token: bool

    @classmethod
    def of(
        cls,
        options: Mapping[str, Sequence[str]],
        tasks: Sequence[str],
        encoder: TextEncoder,
        *,
        per_token: bool,
    ) -> Self:
        """Encode the options of tasks; ``tasks`` are all tasks in the order of their ids.

        Raises:
            TaskError: If two options of a task have the same ids, since both are cut.
        """
        texts = {tasks.index(task): list(own) for task, own in options.items()}
        advice = "raise data.max_output_length"
        ids = {
            task_id: choice_ids(encoder, own, f"options of '{tasks[task_id]}'", advice)
            for task_id, own in texts.items()
        }
        return cls(texts, ids, pad_id_of(encoder.tokenizer), per_token)

    def answers(
        self, model: SkilledModel, task_ids: Int[Tensor, "B"], inputs: Mapping[str, Any]
    ) -> dict[int, str]:
        """Return the likeliest option of every row of a batch whose task has options."""
        of_row = dict(enumerate(task_ids.tolist()))
        rows = [row for row, task_id in of_row.items() if task_id in self.ids]
        if not rows:
            return {}
        real = inputs["attention_mask"].bool()
        scores = option_scores(
            model,
            task_ids[rows],
            [inputs["input_ids"][row][real[row]].tolist() for row in rows],
            [self.ids[of_row[row]] for row in rows],
            pad_id=self.pad_id,
            per_token=self.per_token,
        )
        return {
            row: self.texts[of_row[row]][own.index(max(own))]
            for row, own in zip(rows, scores, strict=True)
        }
