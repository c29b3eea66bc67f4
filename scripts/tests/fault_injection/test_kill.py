"""Commands are killed in the middle of their work, and nothing is lost and nothing left."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def run_script(out: Path, *options: str) -> str:
    """Run the test; it fails where it saw something bad."""
    command = [
        sys.executable,
        str(ROOT / "scripts/fault_injection/kill.py"),
        "--out",
        str(out),
        *options,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr[-4000:]}"
    return found.stdout


@linux
def test_a_few_kills_leave_no_trace(tmp_path: Path) -> None:
    # With this seed the command meets one fault.
    table = run_script(tmp_path / "out", "--kills", "1", "--only", "train", "--seed", "2")
    (faults,) = re.findall(r"│ all +│ +\d+ │ +(\d+) │", table)
    assert int(faults) >= 1


@linux
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_kills_leave_no_trace(tmp_path: Path) -> None:
    run_script(tmp_path / "out", "--kills", "200")
