"""Metrics of the gym: shares of answers by their judgement against the row's knowledge.

export PYTHONPATH=scripts/gyms
mttl predict ... --metric dialogue_gym.metrics:Faithful
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dialogue_gym.claims import Verdict, judge
from mttl.metrics.crossfit import TextMetric
from mttl.metrics.grounding import knowledge_of


class Judged(TextMetric):
    """Share of answers whose label is among ``labels``."""

    labels: tuple[str, ...] = ()

    def update(
        self,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add predictions with their rows, which have the columns ``knowledge`` and ``history``."""
        texts = [[knowledge_of(row), row["columns"]["history"][-1]] for row in rows]
        super().update(predictions, texts)

    def row(self, prediction: str, accepted: Sequence[str]) -> bool:
        """Return whether an answer counts, given knowledge and question."""
        return self.counts(judge(prediction, *accepted))

    def counts(self, verdict: Verdict) -> bool:
        """Return whether a judgement counts."""
        return verdict.label in self.labels

    def score(self, rows: Sequence[bool]) -> float:
        """Return the share."""
        return sum(rows) / len(rows)


class Faithful(Judged):
    """Share of answers that only say what the knowledge has, copied or not."""

    labels = ("faithful", "copied")


class Copied(Judged):
    """Share of answers that are sentences of the knowledge."""

    labels = ("copied",)


class Hallucinated(Judged):
    """Share of answers with a claim that the knowledge does not have."""

    labels = ("hallucinated",)


class Answering(Judged):
    """Share of answers with a value of the attribute that the user asks about."""

    def counts(self, verdict: Verdict) -> bool:
        """Return whether the question is answered."""
        return verdict.answers
