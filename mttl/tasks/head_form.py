"""Tasks without generated answers: tags of words, a label, a tree of words, or raw text."""

from typing import ClassVar, Literal

from mttl.io.errors import TaskError
from mttl.io.reading import shown
from mttl.io.record import Record
from mttl.metrics.trees import arcs_of
from mttl.tasks.rows import Row

HeadKind = Literal["tokens", "label", "tree", "text"]


class HeadForm(Record):
    """Kind of a task, and its answers.

    Attributes:
        kind: ``tokens``: a tag per word; ``label``; ``tree``: ``head:relation`` per word. ``text``
            has no head and no answers: the backbone's output layer predicts its tokens.
        labels: All tags, labels or relations; empty for numbers.
    """

    error: ClassVar = TaskError

    kind: HeadKind
    labels: list[str] = []  # noqa: RUF012 -- pydantic copies defaults

    def names(self, answer: str) -> list[str]:
        """Return the tags, the label or the relations of an answer."""
        if self.kind == "tree":
            return [relation for _, relation in arcs_of(answer)]
        return answer.split() if self.kind == "tokens" else [answer]

    def check(self, row: Row) -> None:
        """Raise a `TaskError` if a row's answer does not fit its input or the form."""
        words, answer, problem = row.input.split(), row.outputs[0], ""
        names = self.names(answer)
        unknown = [name for name in names if self.labels and name not in self.labels]
        if unknown:
            problem = f"'{unknown[0]}' is not among {', '.join(self.labels)}"
        elif self.kind != "label" and len(names) != len(words):
            problem = f"it has {len(words)} words, and the answer is for {len(names)}"
        if problem:
            raise TaskError(f"the row {shown(row.input)} with answer {shown(answer)}: {problem}")
