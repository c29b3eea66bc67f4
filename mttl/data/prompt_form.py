"""How a question to a trained model looks, and how long its answer may be: as in training."""

from typing import Annotated

from pydantic import BeforeValidator, PositiveInt
from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Prefix, Truncate, prefix_kind
from mttl.config.section import Section
from mttl.data.encode import TextEncoder
from mttl.data.opening import opening
from mttl.errors import TaskError


class PromptForm(Section):
    """The form of inputs and answers; a saved inventory has it among its settings."""

    prefix: Annotated[Prefix, BeforeValidator(prefix_kind)] = "name"
    """What stands before every input; see the section `data`."""
    descriptions: bool = False
    """Whether the description of the task follows it."""
    max_input_length: PositiveInt = 512
    """Most tokens of an input."""
    max_output_length: PositiveInt = 64
    """Most tokens of an answer."""
    truncate: Truncate = "end"
    """Which side of an input that is too long is cut."""
    task_descriptions: dict[str, str] = {}  # noqa: RUF012 -- pydantic copies defaults
    """The descriptions that were shown, by task."""

    def opening(self, task: str) -> str:
        """Return what stands before the inputs of a task.

        Raises:
            TaskError: If the model reads descriptions, and that of the task is not known.
        """
        description = self.task_descriptions.get(task) if self.descriptions else None
        if self.descriptions and description is None:
            raise TaskError(
                f"the model was trained with descriptions of tasks, and its folder holds none of "
                f"'{task}': an earlier version wrote it. Repeat the training command with --resume"
            )
        return opening(task, self.prefix, description)

    def text(self, task: str, question: str) -> str:
        """Return an input as the model reads it; blanks around it are dropped, as in training."""
        return self.opening(task) + question.strip()

    def encoder(self, tokenizer: PreTrainedTokenizerBase, *, decoder_only: bool) -> TextEncoder:
        """Return what encodes inputs and answers."""
        return TextEncoder(
            tokenizer,
            decoder_only=decoder_only,
            max_input_length=self.max_input_length,
            max_output_length=self.max_output_length,
            truncate=self.truncate,
        )
