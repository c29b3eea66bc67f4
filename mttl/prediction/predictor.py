"""A trained model with all that it takes to answer texts: the form of its prompts, and its search.

Evaluation after training, adapted models and commands ask in the same form, so the same input has
the same answer everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric.plugins import Precision
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import TrainCollator, pad_id_of
from mttl.data.prompt_form import PromptForm
from mttl.errors import TaskError, nearest
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_logits
from mttl.prediction.batched_answers import answer_texts, batches_by_length
from mttl.prediction.choices import Choice, check_choices
from mttl.shapes import IGNORED
from mttl.skills.skilled_model import SkilledModel
from mttl.training.loss import answer_losses


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A model that answers texts of its tasks.

    Attributes:
        model: Backbone, skills and router.
        tokenizer: The backbone's.
        tasks: Names of the tasks in the order of their ids.
        form: How inputs looked in training, and how long answers may be.
        search: How answers are searched, as `mttl.models.generation.search_settings` says.
        precision: Of the arithmetic; single by default.
    """

    model: SkilledModel
    tokenizer: PreTrainedTokenizerBase
    tasks: tuple[str, ...]
    form: PromptForm
    search: Mapping[str, Any]
    precision: Precision = field(default_factory=Precision)

    def task_ids(self, names: Sequence[str]) -> torch.Tensor:
        """Return the ids of tasks by name, shape (B,).

        Raises:
            TaskError: If a name is unknown.
        """
        for name in names:
            if name not in self.tasks:
                raise TaskError(f"the model knows no task '{name}'.{nearest(name, self.tasks)}")
        return torch.tensor([self.tasks.index(name) for name in names], dtype=torch.long)

    def predict(
        self,
        tasks: str | Sequence[str],
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
        **search: Any,
    ) -> list[str]:
        """Answer texts as the model is evaluated; it is left in evaluation mode.

        Args:
            tasks: The task of all, or of each.
            texts: Inputs, without the prefix that training put before them.
            batch_size: Texts at a time.
            on_rows: Called after each batch with its size.
            **search: What ``generate`` of transformers takes instead of the run's own search:
                ``num_beams=4``, ``do_sample=True, temperature=0.7``, ``max_new_tokens=200``.

        Returns:
            An answer to each, in order, without blanks around it.

        Raises:
            TaskError: If a task is unknown, or there is not one for each text.
            TypeError: If ``texts`` is a single text rather than a list of them.
            ValueError: If more than one answer is asked for.
        """
        if search.get("num_return_sequences", 1) != 1:
            n = search["num_return_sequences"]
            raise ValueError(f"num_return_sequences ({n}) must be 1: every text has one answer")
        names = self._names(tasks, texts)
        if not names:
            return []
        task_ids = self.task_ids(names).to(self.device)

        def generate(rows: Sequence[int], **inputs: Any) -> torch.Tensor:
            return self.generate(task_ids[list(rows)], **inputs)

        self.model.eval()
        return answer_texts(
            generate,
            self.form.encoder(self.tokenizer, decoder_only=self.decoder_only),
            [self.form.text(task, text) for task, text in zip(names, texts, strict=True)],
            openings=[self.form.opening(task) for task in names],
            decoder_only=self.decoder_only,
            device=self.device,
            batch_size=batch_size,
            on_rows=on_rows,
            **{**self.search, **search},
        )

    def generate(self, task_ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
        """Generate ids in the run's precision.

        Args:
            task_ids: The task of each prompt, shape (B,).
            **inputs: What ``generate`` of transformers takes.
        """
        with self.precision.forward_context():
            return self.model.generate(task_ids, **inputs)

    def choose(
        self,
        tasks: str | Sequence[str],
        texts: Sequence[str],
        choices: Sequence[str] | Sequence[Sequence[str]],
        *,
        per_token: bool = False,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
    ) -> list[Choice]:
        """Choose among given answers by their likelihood; see `mttl.prediction.choices`.

        Args:
            tasks: As for `predict`, and so are the others.
            texts: Inputs.
            choices: The answers of all texts, or a list of them for each.
            per_token: Compare means over the tokens of an answer rather than sums.
            batch_size: Answers at a time.
            on_rows: Called with the number of answers that were scored.

        Raises:
            TaskError: If a task is unknown, there is not one for each text, or a text has less than
                two different answers to choose from.
        """
        names = self._names(tasks, texts)
        shared = all(isinstance(choice, str) for choice in choices)
        of_each: Any = [choices] * len(texts) if shared else choices
        if len(of_each) != len(texts):
            raise TaskError(f"there are {len(texts)} texts and choices for {len(of_each)}")
        pairs = []  # of a text's place and one of its answers
        for place, given in enumerate(of_each):
            answers = check_choices(given, f"text {place + 1}")
            pairs += [(place, answer) for answer in answers]
        encoder = self.form.encoder(self.tokenizer, decoder_only=self.decoder_only)
        questions = [self.form.text(task, text) for task, text in zip(names, texts, strict=True)]
        prompts = encoder.prompts(questions, [self.form.opening(task) for task in names])
        labels = encoder.answers([pair[1] for pair in pairs])
        task_ids = self.task_ids(names).tolist()
        collate = TrainCollator(pad_id_of(self.tokenizer), len(self.tasks), self.decoder_only)
        self.model.eval()
        scores = [0.0] * len(pairs)
        lengths = [
            len(prompts[place]) + len(ids) for (place, _), ids in zip(pairs, labels, strict=True)
        ]
        for rows in batches_by_length(lengths, batch_size):
            batch = collate(
                [
                    {
                        "input_ids": prompts[pairs[row][0]],
                        "labels": labels[row],
                        "task_id": task_ids[pairs[row][0]],
                    }
                    for row in rows
                ]
            )
            for row, score in zip(rows, self._scores(batch, per_token), strict=True):
                scores[row] = score
            on_rows(len(rows))
        found: list[dict[str, float]] = [{} for _ in texts]
        for (place, answer), score in zip(pairs, scores, strict=True):
            found[place][answer] = score
        return [Choice.among(of_text) for of_text in found]

    def pipeline(self, task: str) -> "TaskPipeline":
        """Return one task as a function of texts.

        Raises:
            TaskError: If the task is unknown.
        """
        self.task_ids([task])
        return TaskPipeline(self, task)

    @torch.no_grad()
    def _scores(self, batch: Mapping[str, Any], per_token: bool) -> list[float]:
        """Return the log-probability of every answer of a batch, or its mean over tokens."""
        batch = {name: value.to(self.device) for name, value in batch.items()}
        with self.precision.forward_context():
            routing = self.model.route(batch["task_ids"], inputs=batch)
            with self.model.slot.use(routing):
                logits, labels, places = forced_logits(self.model.backbone, batch)
        losses = answer_losses(logits, labels, places)
        n_tokens = (labels != IGNORED).sum(1) if per_token else 1
        return (-losses.sum(1) / n_tokens).tolist()

    def _names(self, tasks: str | Sequence[str], texts: Sequence[str]) -> list[str]:
        if isinstance(texts, str):
            raise TypeError(f"texts ('{texts}') must be a list of texts; write ['{texts}']")
        names = [tasks] * len(texts) if isinstance(tasks, str) else list(tasks)
        if len(names) != len(texts):
            raise TaskError(
                f"there are {len(names)} tasks and {len(texts)} texts; name one task for all, or "
                "one for each"
            )
        return names

    @property
    def decoder_only(self) -> bool:
        """Whether the model continues its input rather than answering it from an encoder."""
        return is_decoder_only(self.model.backbone)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


@dataclass(frozen=True)
class TaskPipeline:
    """One task of a model: call it with a text, or with a list of them.

    Attributes:
        predictor: The model.
        task: Which of its tasks.
    """

    predictor: Predictor
    task: str

    def __call__(self, texts: str | Sequence[str], **options: Any) -> str | list[str]:
        """Answer a text, or every text of a list.

        Args:
            texts: One or several.
            **options: Of `Predictor.predict`.
        """
        if isinstance(texts, str):
            return self.predictor.predict(self.task, [texts], **options)[0]
        return self.predictor.predict(self.task, texts, **options)
