"""What stands before every input of a task: its name, a code or nothing, and its description."""

import hashlib
from collections.abc import Sequence
from string import ascii_lowercase
from typing import NamedTuple

from mttl.config.data_schema import TaskPrefix
from mttl.io.errors import TaskError

_CODE_LETTERS = 6


class PromptPrefix(NamedTuple):
    """What a model reads before the input itself.

    Attributes:
        text: The beginning of the input.
        system: The system text of a chat, in which the input is what the user says.
    """

    text: str
    system: str | None = None


def prompt_prefix(task: str, prefix: TaskPrefix, description: str | None = None) -> str:
    """Return the text before the inputs of a task."""
    shown = {"name": f"[{task}] ", "code": f"[{task_code(task)}] ", "none": ""}[prefix]
    return shown if description is None else f"{shown}{description.strip()} "


def task_code(task: str) -> str:
    """Return six letters that identify a task and reveal nothing of its name.

    They are drawn by a hash of the name alone, so that training, adaptation and later calls show
    the same ones. Names that differ in one letter have unrelated codes. Two of 160 tasks have the
    same code with probability 4e-5; `check_codes` answers that.
    """
    number = int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "big")
    letters = ""
    for _ in range(_CODE_LETTERS):
        number, place = divmod(number, len(ascii_lowercase))
        letters += ascii_lowercase[place]
    return letters


def check_codes(tasks: Sequence[str]) -> None:
    """See that every task has a code of its own.

    Raises:
        TaskError: If two share one.
    """
    owners: dict[str, str] = {}
    for task in tasks:
        owner = owners.setdefault(task_code(task), task)
        if owner != task:
            raise TaskError(
                f"the tasks '{owner}' and '{task}' have the same code '{task_code(task)}', so the "
                "model could not tell them apart. Rename one, or set data.prefix to name or none"
            )
