"""Training many LoRAs in one process, and one by one: both sides train what they say."""

import argparse
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers.gyms import TASKS, write_config, write_gym

TARGETS = "skills.targets=[attention, mlp]"  # as those of PEFT


@pytest.fixture
def benchmark(load: Callable[[str], ModuleType]) -> Iterator[ModuleType]:
    yield load("private_training")
    logging.disable(logging.NOTSET)


def test_both_sides_train_as_many_numbers_for_a_task(benchmark: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    settings = argparse.Namespace(
        config=str(config), override=["backbone.train=false", TARGETS], steps=2, rows=4, sample=2
    )
    found = {
        side: benchmark.work(side, tasks, settings)
        for side, tasks in (("frozen", ["copy"]), ("PEFT", ["copy"]), ("private", list(TASKS)))
    }
    assert found["frozen"]["trained"] == 0
    assert found["frozen"]["scores"] == {}
    assert found["private"]["trained"] == 3 * found["PEFT"]["trained"] > 0
    assert list(found["PEFT"]["scores"]) == ["copy"]
    assert list(found["private"]["scores"]) == ["copy", "reverse"]
    assert all(one["step"] > 0 and one["peak"] > 0 for one in found.values())
