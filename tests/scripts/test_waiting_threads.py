"""The benchmark of waiting threads: what is counted, and what its processes are told."""

import json
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe

sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))  # as Python does for a script
SCRIPT = load_recipe(ROOT / "scripts" / "benchmarks" / "waiting_threads.py")


def test_rounds_are_counted_and_warm_ups_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def train(n_steps: int, variables: dict[str, str]) -> float:
        assert n_steps == 5
        seen.append(variables)
        seconds = 2.0 if "GOMP_SPINCOUNT" in variables else 1.0
        return 50.0 if len(seen) <= 2 else seconds  # the warm-up

    monkeypatch.setattr(SCRIPT, "_train", train)
    out = tmp_path / "times.json"
    given = ["--steps", "5", "--rounds", "3", "--warmup", "1", "--busy", "0", "--json", str(out)]
    assert SCRIPT.main([*given, "--malloc", "default", "--only", "two threads that sleep"]) == 0
    floor, other = json.loads(out.read_text())["rows"]
    assert (floor["name"], floor["median"], floor["max"]) == ("two threads that spin", 2.0, 2.0)
    assert (other["name"], other["ratio"]) == ("two threads that sleep", 0.5)
    assert seen == 4 * [SCRIPT.SPINNING, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}]


def test_a_run_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match=r"the run ended with status 2:\n.*max_steps"):
        SCRIPT._train(-5, {"OMP_NUM_THREADS": "1"})


def test_busy_processes_end_with_the_block() -> None:
    with SCRIPT._busy(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert all(loop.returncode for loop in loops)
