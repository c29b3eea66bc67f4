"""The test of damaged and hostile files: a small part of it always, the large one where asked."""

import subprocess
import sys

import pytest

from helpers.command import ROOT


def run_script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    script = ROOT / "scripts" / "fault_injection" / "fuzz.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=ROOT
    )


def test_no_case_is_bad() -> None:
    """A few of every area; with another seed than the documents'."""
    ended = run_script("--cases", "10", "--seed", "1", "--patience", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert ": 0 bad" in " ".join(ended.stdout.split())


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_cases() -> None:
    ended = run_script("--cases", "10000")
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


def test_a_bad_reader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sees what it looks for: a reader that raises, runs, ignores and hangs."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "fault_injection"))
    from fuzzing.cases import MESSAGE, REFUSED, about_message

    assert about_message("a 'b' must be c", printed=False) is None
    assert about_message("", printed=False) == "the message is empty"
    assert "holds" in str(about_message("a\x1b[2J", printed=False))
    assert "characters" in str(about_message("a" * 9000, printed=False))
    assert about_message("error\nTraceback (most", printed=True) == "a traceback is printed"
    assert (MESSAGE, REFUSED) == ("message", "refused")
