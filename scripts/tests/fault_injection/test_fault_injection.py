"""A small part of the fault injection; the large ones where they are asked for."""

import re
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, python

FOLDER = ROOT / "scripts" / "fault_injection"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
large = (pytest.mark.slow, pytest.mark.timeout(7200))


def run_script(name: str, *options: str) -> str:
    """Run the script; it fails where it saw something bad."""
    found = python(FOLDER / name, *options)
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr[-4000:]}"
    return found.stdout


@linux
@pytest.mark.parametrize(
    "options",
    # With this seed the command meets one fault.
    [("1", "--only", "train", "--seed", "2"), pytest.param(("200",), marks=large)],
)
def test_kills_leave_no_trace(options: tuple[str, ...], tmp_path: Path) -> None:
    table = run_script("kill.py", "--out", str(tmp_path / "out"), "--kills", *options)
    (faults,) = re.findall(r"│ all +│ +\d+ │ +(\d+) │", table)
    assert int(faults) >= 1


@pytest.mark.parametrize(
    "options",
    # A few of every area; with another seed than the documents'.
    [("10", "--seed", "1", "--patience", "3"), pytest.param(("10000",), marks=large)],
)
def test_no_damaged_or_hostile_file_is_bad(options: tuple[str, ...]) -> None:
    assert ": 0 bad" in " ".join(run_script("fuzz.py", "--cases", *options).split())


def test_a_bad_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(FOLDER))
    from fuzzing.cases import about_message

    assert about_message("a 'b' must be c", printed=False) is None
    assert about_message("", printed=False) == "the message is empty"
    assert "holds" in str(about_message("a\x1b[2J", printed=False))
    assert "characters" in str(about_message("a" * 9000, printed=False))
    assert about_message("error\nTraceback (most", printed=True) == "a traceback is printed"
