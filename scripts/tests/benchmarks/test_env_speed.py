"""The benchmark of the environments plays what it says."""

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"
SETTINGS = argparse.Namespace(level="GoToObjS4", levels=["GoToObjS4"], slots=2, steps=3, workers=1)


@pytest.fixture
def env_speed(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "env_speed.py")
    sys.modules.pop("_common", None)


@pytest.mark.parametrize("variant", ["minigrid", "gymnasium sync", "ours", "envpool"])
def test_every_variant_plays(env_speed, variant, capsys) -> None:
    if variant == "envpool" and importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool is not installed")
    step, _ = env_speed.build(variant, SETTINGS)
    step()
    assert capsys.readouterr().out == ""


def test_the_command_prints_and_writes_its_table(tmp_path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--levels", "GoToObjS4", "--slots", "2", "--steps", "3", "--rounds", "1"]
    arguments += ["--warmup", "1", "--json", str(figures), "--only", "gymnasium async", "ours"]
    ended = subprocess.run(
        [sys.executable, FOLDER / "env_speed.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Sampling rejected" not in ended.stdout
    rows = json.loads(figures.read_text())["rows"]
    names = ["minigrid", "gymnasium async", "ours"]
    assert [row["name"] for row in rows] == [f"GoToObjS4, {name}" for name in names]
    assert rows[0]["ratio"] == 1.0
    assert all(row["median"] > 0 for row in rows)


def test_an_unknown_level_is_refused(env_speed, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        env_speed.main(["--levels", "GoToo"])
    assert stopped.value.code == 2
    assert "unknown level 'GoToo'; did you mean 'GoTo'" in capsys.readouterr().err
