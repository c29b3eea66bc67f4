"""Comparisons whose commands run in this process."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe
from mttl.files import write_text

# What scripts/benchmarks/skill_cost.py writes: it takes processes of its own, and half a minute.
MEASURED = {
    "without skills, training": {"ratio": 1.0, "peak_mib": 20.0},
    "with skills, training": {"ratio": 1.5, "peak_mib": 30.0},
    "without skills, answering": {"ratio": 1.0},
    "with skills, answering": {
        **{"ratio": 0.8, "backbone": 2000.0, "trained": 100.0, "mergeable": 1.0},
        **{"changed": 500.0, "rank": 2.0, "full": 16.0},
    },
}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run commands in this process, and list them."""
    given: list[list[str]] = []
    monkeypatch.syspath_prepend(ROOT / "scripts")
    stages = importlib.import_module("comparison.stages")

    def run(self: object, command: list[str], log: Path, cost: Path) -> None:
        given.append(command)
        if Path(command[0]).stem == "skill_cost":
            rows = [{"name": name, **row} for name, row in MEASURED.items()]
            Path(command[-1]).write_text(json.dumps({"rows": rows}))
        elif Path(command[0]).stem == "query_cost":
            names = ["bare backbone", *(text.partition("=")[0] for text in command[1:-2])]
            rows = [{"name": name, "ratio": 2.0, "resident_mib": 30.0} for name in names]
            write_text(command[-1], json.dumps({"rows": rows}))
        else:
            recipe: ModuleType = load_recipe(Path(command[0]))
            assert recipe.main(command[1:]) == 0
        stages.Cost(1.0, 100.0, ended=True).write(cost)

    monkeypatch.setattr(stages.Processes, "run", run)
    return given
