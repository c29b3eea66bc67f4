"""Results of any kind of job, a line each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from mttl.adaptation.result_lines import ResultLines
from mttl.io.errors import MttlError


@dataclass(frozen=True)
class Score:
    job: str
    score: float

    def row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**row)


def test_a_second_start_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    with ResultLines(path, Score).writing() as results:
        results.add(Score("a", 0.5))
    assert path.read_text() == '{"job": "a", "score": 0.5}\n'
    assert ResultLines(path, Score).finished == {"a": Score("a", 0.5)}


def test_an_error_of_the_work_is_not_taken_for_another_writer(tmp_path: Path) -> None:
    results = ResultLines(tmp_path / "results.jsonl", Score)
    with pytest.raises(BlockingIOError), results.writing():
        raise BlockingIOError
    results.add(Score("a", 0.5))


@pytest.mark.parametrize("line", ["{", "[1]", '{"job": "a"}', '{"job": "a", "score": 1, "x": 2}'])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"job": "a", "score": 0.5}\n' + line + "\n")
    with pytest.raises(MttlError, match=r"results\.jsonl', line 2 is damaged .* Delete the line"):
        ResultLines(path, Score)
