"""Training many LoRAs in one process, and one by one: both sides train what they say."""

import argparse
import json
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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


def test_totals_are_of_all_tasks(benchmark, monkeypatch, capsys) -> None:
    took = {"frozen": 1.0, "PEFT": 2.0, "private": 3.0}
    given: list[tuple[str, list[str]]] = []

    def run(command: list[str], **_: Any) -> argparse.Namespace:
        side, text = command[command.index("--work") + 1 :][:2]
        given.append((side, text.split(",")))
        row = {"start": 10.0, "step": took[side], "peak": 100.0, "trained": 7}
        row["scores"] = dict.fromkeys(text.split(","), took[side] / 10)
        return argparse.Namespace(stdout=json.dumps(row))

    monkeypatch.setattr(subprocess, "run", run)
    tasks = [f"t{number}" for number in range(10)]
    monkeypatch.setattr(benchmark, "training_tasks", lambda settings: tasks)
    assert benchmark.main(["--tasks", "8", "--steps", "5", "--sample", "2"]) == 0
    assert given == [
        *(("PEFT", ["t0"]), ("private", tasks[:8]), ("frozen", ["t0"]), ("PEFT", ["t4"]))
    ]
    # 8 starts and 8 x 5 steps of 2 s, against one start and 40 steps of 3 s.
    text = capsys.readouterr().out
    assert "160" in text
    assert "130" in text
    assert "0.81" in text
    with pytest.raises(SystemExit, match="trains on 10 tasks"):
        benchmark.main(["--tasks", "11"])
