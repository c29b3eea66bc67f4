"""The templates of a task, which a run keeps: how a record becomes an input and its answers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Self

from mttl.io.errors import TaskError, raised_as
from mttl.io.record import Record
from mttl.tasks.filters import TEXT_FILTERS, RecordError
from mttl.tasks.task import Task
from mttl.tasks.template import compile_template, compile_values, template_fields

_inputs, _outputs = lru_cache(compile_template), lru_cache(compile_values)


class RecordTemplate(Record):
    """Templates of inputs and right answers; the fields are those of `mttl.tasks.task.Task`."""

    error: ClassVar = TaskError

    input: str
    output: str = ""
    labels: list[str] = []  # noqa: RUF012 -- pydantic copies defaults
    cleaning: str | None = None
    dialogue: bool = False
    control: dict[str, list[float]] = {}  # noqa: RUF012 -- as above; edges of bins by metric

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the templates of a task."""
        names = {"input": task.input, "output": task.output, "labels": list(task.labels)}
        return cls(**names, cleaning=task.cleaning, dialogue=task.kind == "dialogue")

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has the fields of an input."""
        return template_fields(self.input) <= record.keys()

    def applies(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has all fields of an input, or some and no ``input``."""
        some = template_fields(self.input) & record.keys()
        return self.fits(record) or ("input" not in record and bool(some))

    def filled(self, record: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return a record with ``input``, and with ``output`` if it has the fields.

        Both are empty where all fields are. ``place`` describes the record in messages. Raises a
        `TaskError` if a field is missing or not a text.
        """
        labels, new = tuple(self.labels), {"input": ""}
        given = {name for name, value in record.items() if value not in (None, "")}
        with raised_as(TaskError, place, RecordError):
            if not self.fits(record) or template_fields(self.input) & given:
                text = _inputs(self.input, labels)(record)
                new["input"] = TEXT_FILTERS[self.cleaning](text) if self.cleaning else text
            if self.output and template_fields(self.output) <= given:
                new["output"] = _outputs(self.output, labels)(record)
        return {**record, **new}
