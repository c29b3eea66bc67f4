"""The benchmarks of sparse skills measure what they say."""

import argparse
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(FOLDER)
    yield lambda name: load_recipe(FOLDER / f"{name}.py")
    for name in ("_common", "_models"):
        sys.modules.pop(name, None)


def test_optimizer_states_are_counted(load: Callable[[str], ModuleType]) -> None:
    script = load("sparse_memory")
    settings = argparse.Namespace(size="tiny", density=0.01, examples=1, tokens=4)
    states = {}
    for name in script.VARIANTS:
        step, facts = script.build(name, settings)
        step()
        states[name] = facts["state_mib"]
    assert states[script.FLOOR] == 0
    assert 0.009 < states[script.SPARSE] / states[script.FULL] < 0.03


def test_every_way_of_mixing_steps(load: Callable[[str], ModuleType]) -> None:
    script = load("sparse_mixing")
    settings = argparse.Namespace(features=32, skills=2, density=0.1, n_examples=3, n_positions=4)
    for name in script.VARIANTS:
        step, _ = script.build(name, settings)
        step()
    assert script.batch("16x8") == (16, 8)
    with pytest.raises(
        argparse.ArgumentTypeError, match="'0' must be a whole number of at least 1"
    ):
        script.batch("0x8")
