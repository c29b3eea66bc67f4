"""The benchmark of answers without a model measures every command and question."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    module = load_recipe(FOLDER / "startup.py")
    monkeypatch.setitem(sys.modules, "startup", module)  # its processes import it by name
    yield module
    sys.modules.pop("_common", None)


def test_processor_and_wall_time_of_an_answer(startup: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    only = "pl_train --version"
    given = ["--rounds", "1", "--warmup", "1", "--only", only, "--json", str(path)]
    assert startup.main(given) == 0
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(rows) == {
        f"{name}, {clock}" for name in ("python", only) for clock in ("processor", "wall")
    }
    assert rows[f"{only}, processor"]["ratio"] > 1
    assert rows[f"{only}, wall"]["median"] < 60_000


def test_every_command_line_is_one_of_a_recipe(startup: ModuleType) -> None:
    lines = [startup.command_line(variant) for variant in startup.VARIANTS[1:]]
    assert len(lines) == len(startup.COMMANDS) * len(startup.QUESTIONS)
    assert all(Path(line[0]).is_file() for line in lines)
