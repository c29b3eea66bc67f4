"""Results of any kind of job, a line each."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass
from rich.console import Console

from mttl.adaptation.resumable_jobs import ResumableJobs
from mttl.io.errors import DivergedError, MttlError
from mttl.io.record import STRICT


@dataclass(frozen=True, config=STRICT)
class Score:
    job: str
    score: float


def test_a_second_start_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    with ResumableJobs(path, Score).writing() as results:
        results.add(Score("a", 0.5))
    assert path.read_text() == '{"job": "a", "score": 0.5}\n'
    assert ResumableJobs(path, Score).finished == {"a": Score("a", 0.5)}


def test_another_writer_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with (
        ResumableJobs(path, Score).writing(),
        pytest.raises(MttlError, match=r"another process writes '.*l'; wait for it, or .* --out"),
    ):
        ResumableJobs(path, Score).add(Score("a", 0.5))


def test_an_error_of_the_work_is_not_taken_for_another_writer(tmp_path: Path) -> None:
    results = ResumableJobs(tmp_path / "results.jsonl", Score)
    with pytest.raises(BlockingIOError), results.writing():
        raise BlockingIOError
    results.add(Score("a", 0.5))


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", "\0\0", "é", "", '{"job": "a"}', '{"job": "a", "score": 1, "x": 2}'],
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"job": "a", "score": 0.5}\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(MttlError, match=r"results\.jsonl', line 2 is damaged .* Delete the line"):
        ResumableJobs(path, Score)


@pytest.mark.parametrize("kept", [True, False])
def test_jobs_that_diverge_have_no_result_and_the_others_go_on(tmp_path: Path, kept: bool) -> None:
    def work(job: str, on_step: Callable[[], object]) -> Score:
        on_step()
        if job == "b":
            raise DivergedError("not finite")
        return Score(job, 0.5)

    path, to = tmp_path / "results.jsonl", Console(file=io.StringIO(), width=200)
    results = ResumableJobs(path if kept else None, Score)
    diverged = results.run("abc", work, to, doing="working", shown=lambda found: str(found.score))
    assert set(results.finished) == {"a", "c"}
    lines = to.file.getvalue().splitlines()
    assert lines[1:] == ["2 of 3: b: diverged, about 0 s left", "3 of 3: c: 0.5"]
    assert path.exists() == kept
    with pytest.raises(DivergedError, match="1 diverged, and have no result:\nb: not finite"):
        diverged.report()
