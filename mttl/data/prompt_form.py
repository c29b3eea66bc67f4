"""Format of inputs and answers of a model, as in training."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any, ClassVar, Self

from pydantic import PositiveInt
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Data, TaskPrefix, Template, Truncate
from mttl.config.section import Section
from mttl.data.chat_encoder import ChatEncoder
from mttl.data.encode import PromptPrefix, TextEncoder
from mttl.io.errors import ConfigError, TaskError
from mttl.tasks.control import CONTROL, Edges, code_text
from mttl.tasks.head_form import HeadForm
from mttl.tasks.record_template import RecordTemplate

# Fields with entries for single tasks.
BY_TASK = ("task_descriptions", "task_options", "task_examples", "task_templates", "task_heads")


class PromptForm(Section):
    """Format of inputs and answers; part of a saved inventory's settings."""

    lacks: ClassVar = {
        **dict.fromkeys(
            ("merges", "averages", "exports_inventory", "generates"),
            ("headed", "these tasks have heads; use mttl predict, serve or export --task"),
        ),
        "answers": ("texts", "these tasks are raw text; merge or export their skills"),
    }

    # Settings of the section `data`, which describes them.
    prefix: TaskPrefix = "name"
    descriptions: bool = False
    max_input_length: PositiveInt = 512
    max_output_length: PositiveInt = 64
    truncate: Truncate = "end"
    template: Template = "plain"
    system: str | None = None
    date: str | None = None
    task_descriptions: dict[str, str] = {}  # noqa: RUF012 -- pydantic copies defaults
    """Descriptions by task."""
    task_options: dict[str, list[str]] = {}  # noqa: RUF012 -- as above
    """Options to rank, by task."""
    task_templates: dict[str, RecordTemplate] = {}  # noqa: RUF012 -- as above
    """Templates of the task files, for records instead of inputs."""
    task_heads: dict[str, HeadForm] = {}  # noqa: RUF012 -- as above
    """Heads or raw text by task; tasks without an entry generate their answers."""
    task_examples: dict[str, list[list[str]]] = {}  # noqa: RUF012 -- as above
    """Pairs of input and answer before every input, by task (`adapt.mode: in_context`)."""

    @property
    def texts(self) -> list[str]:
        """Tasks of raw text."""
        return [task for task, form in self.task_heads.items() if form.kind == "text"]

    @property
    def headed(self) -> list[str]:
        """Tasks with heads."""
        return [task for task, form in self.task_heads.items() if form.kind != "text"]

    def is_dialogue(self, task: str) -> bool:
        """Return whether a task's inputs are dialogues."""
        template = self.task_templates.get(task)
        return template is not None and template.dialogue

    def edges(self, task: str) -> Edges:
        """Return the edges of a controlled task's bins by metric; empty for other tasks."""
        template = self.task_templates.get(task)
        return {} if template is None else template.control

    def codes_in(self, task: str, record: Mapping[str, Any]) -> Any:
        """Return the codes in a record, if any."""
        given = record.get(CONTROL)
        return given if self.edges(task) or isinstance(given, Mapping) else None

    @classmethod
    def of(cls, data: Data) -> Self:
        """Return the form of the section `data`."""
        return cls.model_validate(data.model_dump(include=set(cls.model_fields)))

    def prompt_prefix(self, task: str, control: Any = None) -> PromptPrefix:
        """Return the text before a task's inputs; raw text has none.

        ``control`` are the codes of a controlled task (`mttl.tasks.control.code_text`), by default
        the highest. Raises a `TaskError` for wrong codes, or if the form includes descriptions, but
        the task's is unknown.
        """
        if task in self.texts:
            return PromptPrefix("")
        description = self.task_descriptions.get(task) if self.descriptions else None
        if self.descriptions and description is None:
            raise TaskError(f"the model was trained with task descriptions, but '{task}' has none")
        dialogue = self.is_dialogue(task)
        examples = [(q.strip(), a.strip()) for q, a in self.task_examples.get(task, [])]
        shown = {"name": f"[{task}] ", "code": f"[{task_code(task)}] ", "none": ""}[self.prefix]
        if (edges := self.edges(task)) or control:
            shown += code_text(edges, control)
        if self.template == "plain":
            before = "".join(f"{question}\n{answer}\n\n" for question, answer in examples)
            described = "" if description is None else f"{description.strip()} "
            return PromptPrefix(before + shown + described, dialogue=dialogue)
        system = "\n\n".join(text.strip() for text in (self.system, description) if text)
        return PromptPrefix(shown, system or None, tuple(examples), dialogue)

    def text(self, task: str, question: str) -> str:
        """Return the formatted input, stripped as in training."""
        return self.prompt_prefix(task).text + question.strip()

    def with_examples(
        self,
        task: str,
        examples: Sequence[list[str]],
        context_length: int,
        tokenizer: PreTrainedTokenizerBase,
        *,
        decoder_only: bool,
    ) -> Self:
        """Return the form with as many leading examples as fit.

        They leave room for an input of `max_input_length`; the total is ``context_length``. Raises
        a `ConfigError` if the first example does not fit.
        """

        def shown(n: int, length: int) -> Self:
            known = self.task_examples | {task: list(examples[:n])}
            return self.model_copy(update={"task_examples": known, "max_input_length": length})

        def length(n: int) -> int:
            form = shown(n, 10**9)
            encoder = form.encoder(tokenizer, decoder_only=decoder_only)
            (ids,) = encoder.prompts([form.text(task, "")], [form.prompt_prefix(task)])
            return len(ids)

        room = context_length - self.max_input_length
        n_shown = bisect_right(range(len(examples) + 1), room, key=length) - 1
        if n_shown < 1:
            raise ConfigError(
                f"adapt.context_length ({context_length}) has no room for an example of '{task}' "
                f"({length(1)} tokens) and an input of data.max_input_length "
                f"({self.max_input_length}); raise it, or lower data.max_input_length"
            )
        return shown(n_shown, context_length)

    def filled(self, task: str, record: Mapping[str, Any], place: str) -> str:
        """Return the input that the task's template makes of a record, which ``place`` describes.

        Raises a `TaskError` if the task has no template, or a field is missing or not a text.
        """
        template = self.task_templates.get(task)
        if template is None:
            raise TaskError(f"{place}: '{task}' has no template for records; give a text")
        return str(template.filled(record, place)["input"])

    def encoder(self, tokenizer: PreTrainedTokenizerBase, *, decoder_only: bool) -> TextEncoder:
        """Return the encoder of inputs and answers.

        Raises a `ConfigError` if the tokenizer or the kind of model does not support the form.
        """
        lengths = self.model_dump(include={"max_input_length", "max_output_length", "truncate"})
        if self.template == "plain":
            return TextEncoder(tokenizer, decoder_only=decoder_only, **lengths)
        if not decoder_only:
            raise ConfigError(
                "data.template 'chat' needs a decoder-only backbone, but this one has an encoder. "
                "Set data.template: plain"
            )
        described = "A description." if self.descriptions else None  # of any task
        if any(map(self.is_dialogue, self.task_templates)):
            described = "Knowledge."
        system = (self.system or "").strip() or described
        return ChatEncoder(tokenizer, system=system, date=self.date, **lengths)


def task_code(task: str) -> str:
    """Return a code of six letters for a task that does not reveal its name.

    It is derived from a hash of the name, so it is the same in training and adaptation. Two of 160
    tasks have the same code with probability 4e-5.
    """
    number = int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "big")
    letters = ""
    for _ in range(6):
        number, place = divmod(number, len(ascii_lowercase))
        letters += ascii_lowercase[place]
    return letters
