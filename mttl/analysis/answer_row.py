"""A line of ``predictions/<task>_<split>.jsonl``."""

from mttl.io.record import Record


class AnswerRow(Record):
    """The answer to a row, beside the accepted ones."""

    sample: int
    input: str
    references: list[str]
    prediction: str
