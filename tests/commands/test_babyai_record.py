"""The command that records demonstrations."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs.demonstrations import load_demonstrations
from mttl.commands import babyai_record as SCRIPT
from mttl.runtime.command import INTERRUPTED


def test_levels_are_recorded_to_one_file(tmp_path, capsys, refused) -> None:
    out = tmp_path / "record.npz"
    given = ["--levels", "GoToObj", "PickupLoc", "--episodes", "3", "--out", str(out)]
    assert SCRIPT.main(given) == 0
    record = load_demonstrations(out)
    assert [one.level for one in record] == ["GoToObj"] * 3 + ["PickupLoc"] * 3
    printed = capsys.readouterr().out
    assert f"6 demonstrations of {sum(len(one.actions) for one in record)} steps" in printed
    before = out.read_bytes()
    assert "record.npz' exists already" in refused(SCRIPT.main, *given)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "record.zip"}, "record.zip' must end in .npz"),
        ({"--levels": "GoToMars"}, "unknown level 'GoToMars'"),
        ({"--levels": "KeyInBox"}, "bot cannot play level 'KeyInBox'"),
        ({"--episodes": "0"}, "'0' must be a whole number of at least 1"),
        ({"--workers": "-1"}, "'-1' must be a whole number of at least 0"),
    ],
)
def test_mistakes_are_told_and_leave_no_file(
    tmp_path, refused, monkeypatch, change, message
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--levels": "GoToObj", "--episodes": "2", "--out": "record.npz", **change}
    assert message in refused(SCRIPT.main, *(part for each in options.items() for part in each))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_interrupting_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group of a terminal: the command and its workers."""
    command = [sys.executable, "-m", "mttl", "babyai", "record"]
    command += ["--levels", "BossLevel", "--episodes", "100000", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "record.npz")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(processes_of(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=150)
    assert process.returncode == INTERRUPTED
    assert errors == "interrupted\n"
    assert not processes_of(process.pid)
    assert not list(tmp_path.iterdir())


def processes_of(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[3] == str(session) and fields[0] != "Z":
            found.append(int(folder.name))
    return found
