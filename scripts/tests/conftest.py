"""What the tests of the package share, for those of the scripts."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from conftest import *  # noqa: E402, F403


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that loads a benchmark by its name."""
    from helpers.command import ROOT, load_recipe

    folder = ROOT / "scripts" / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    yield lambda name: load_recipe(folder / f"{name}.py")
    for name in ("_common", "_models"):
        sys.modules.pop(name, None)
