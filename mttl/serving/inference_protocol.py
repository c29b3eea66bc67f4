"""Requests and responses of the hub's inference API, for tasks with heads.

https://huggingface.co/docs/inference-providers/tasks/token-classification, text-classification
"""

import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from mttl.heads.head import ScoredParts
from mttl.metrics.spans import spans
from mttl.serving.protocol import MOST_ANSWERS, Part, Texts, parse_part
from mttl.tasks.head_form import HeadKind

Entries = list[dict[str, Any]]


class InferenceRequest(Part):
    """Texts for the head of a task."""

    neutral: ClassVar = {"options": None}
    inputs: Annotated[Texts, Field(min_length=1, max_length=MOST_ANSWERS)]
    parameters: dict[str, Any] = Field(default_factory=dict)


class _TagParameters(Part):
    aggregation_strategy: Literal["none", "simple", "first"] = "simple"
    ignore_labels: Sequence[str] = ("O",)

    def entries(self, text: str, parts: ScoredParts) -> Entries:
        """Return the spans of a text, or its words if the tags have no spans."""
        words, key = [word.span() for word in re.finditer(r"\S+", text)], "entity_group"
        found = sorted(spans([tag for tag, _ in parts]), key=lambda span: span[1])
        if self.aggregation_strategy == "none" or not found:
            found = [(tag, place, place + 1) for place, (tag, _) in enumerate(parts)]
            key = "entity" if self.aggregation_strategy == "none" else key
        entries = []
        for name, first, end in found:
            score = fmean(share for _, share in parts[first:end])
            start, stop = words[first][0], words[end - 1][1]
            entry = {key: name, "score": score, "word": text[start:stop]}
            entries.append(entry | {"start": start, "end": stop})
        return [entry for entry in entries if entry[key] not in self.ignore_labels]


class _LabelParameters(Part):
    neutral: ClassVar = {"function_to_apply": ("softmax",)}
    top_k: PositiveInt | None = None

    def entries(self, text: str, parts: ScoredParts) -> Entries:
        """Return labels, best first."""
        return [{"label": label, "score": share} for label, share in parts[: self.top_k]]


class _TreeParameters(Part):
    def entries(self, text: str, parts: ScoredParts) -> Entries:
        """Return words with their heads and relations."""
        pairs = zip(text.split(), (arc.partition(":") for arc, _ in parts), strict=True)
        return [{"word": word, "head": int(arc[0]), "relation": arc[2]} for word, arc in pairs]


def response_form(
    kind: HeadKind, parameters: dict[str, Any]
) -> Callable[[str, ScoredParts], Entries]:
    """Return a function of a text and its scored answer that returns the entries of a response.

    Raises an `ApiError` for parameters that a kind of heads does not have.
    """
    forms: dict[str, Any] = {"tokens": _TagParameters, "label": _LabelParameters}
    return parse_part(forms.get(kind, _TreeParameters), parameters).entries
