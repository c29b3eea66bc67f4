"""The benchmark of the environments plays what it says."""

import argparse
import importlib.util
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
