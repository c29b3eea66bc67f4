"""Comparisons whose commands run in this process, runs to draw, and mistakes of a user."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.routing_runs import write_run  # noqa: F401
from mttl.__main__ import main
from mttl.analysis.figures import canvas
from mttl.runtime.command import USER_MISTAKE, run_command


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels: nothing here looks at them."""
    monkeypatch.setattr(canvas, "DOTS_PER_INCH", 20)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run commands in this process, and list them."""
    given: list[list[str]] = []
    stages = importlib.import_module("mttl.commands.comparison.stages")

    def run(self: object, command: list[str], log: Path, cost: Path) -> None:
        given.append(command)
        assert command[:2] == ["-m", "mttl"]
        assert main(command[2:]) == 0
        stages.Cost(cpu_minutes=1.0, peak_mib=100.0, ended=True).write(cost)

    monkeypatch.setattr(stages.Processes, "run", run)
    return given


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command, which must end as a mistake of the user does; return the message in a line."""

    def run(command: Callable[[list[str]], int], *words: object) -> str:
        capsys.readouterr()
        try:
            status = run_command(lambda: command([str(word) for word in words]))
        except SystemExit as ended:  # by the parser of the command line
            status = ended.code
        error = capsys.readouterr().err
        assert status == USER_MISTAKE, error
        assert "Traceback" not in error
        return " ".join(error.split())

    return run
