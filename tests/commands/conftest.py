"""Comparisons whose commands run in this process, and runs to draw."""

import importlib
from pathlib import Path

import pytest

from helpers.routing_runs import write_run  # noqa: F401
from mttl.__main__ import main


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
