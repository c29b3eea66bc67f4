"""The benchmark of serving: all ways give the same answers, so it compares the same work."""

import argparse
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe

FOLDER = ROOT / "scripts" / "benchmarks"
TINY = argparse.Namespace(size="tiny", tokens=3, burst=40)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "serving.py")
    for name in ("_common", "_models"):
        sys.modules.pop(name, None)


def test_all_ways_give_the_same_answers(serving: ModuleType) -> None:
    pytest.importorskip("peft")
    answers = {name: serving.build(name, TINY)[0]() for name in serving.VARIANTS}
    expected = answers.pop(serving.QUEUE)
    assert len(set(expected)) > 8
    assert {len(text.split()) for text in expected} == {3}
    floor = answers.pop(serving.FLOOR)  # merges the first task only
    assert floor[:: serving.N_TASKS] == expected[:: serving.N_TASKS]
    assert floor != expected
    assert answers == dict.fromkeys(answers, expected)
