"""Demonstrations are the same for any number of workers."""

import os
import signal
from typing import Any

import numpy as np
import pytest

from envs import demonstrations
from envs.bot import BotFailed, Demonstration
from envs.demonstrations import MOST_FAILURES, record_demonstrations
from envs.errors import LevelError, SimulationError
from envs.process import WorkerProcess
from helpers.processes import is_running

LEVELS = ["GoToObj", "PutNextLocalS5N3"]


@pytest.fixture(scope="module")
def record() -> list[Demonstration]:
    return record_demonstrations(LEVELS, 12, seed=3)


def as_lists(record: list[Demonstration]) -> list[dict[str, Any]]:
    return [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(demonstration).items()
        }
        for demonstration in record
    ]


def test_workers_record_the_same_and_say_how_far_they_are(record: list[Demonstration]) -> None:
    calls: list[tuple[str, int]] = []
    again = record_demonstrations(
        LEVELS, 12, seed=3, n_workers=2, progress=lambda *done: calls.append(done)
    )
    assert as_lists(again) == as_lists(record)
    assert calls == [(level, n) for level in LEVELS for n in range(1, 13)]


def test_failures_are_left_out(record, monkeypatch) -> None:
    by_seed = {demonstration.seed: demonstration for demonstration in record}
    monkeypatch.setattr(demonstrations, "demonstrate", lambda level, seed: by_seed[seed])
    missing = by_seed.pop(record[1].seed)

    def demonstrate(level: str, seed: int) -> Demonstration:
        if seed == missing.seed:
            raise BotFailed("it dreams")
        return by_seed[seed]

    monkeypatch.setattr(demonstrations, "demonstrate", demonstrate)
    short = record_demonstrations(LEVELS[:1], 11, seed=3)
    assert as_lists(short) == as_lists([record[0], *record[2:12]])


def test_a_level_the_bot_cannot_play_is_told() -> None:
    with pytest.raises(
        LevelError,
        match=f"bot cannot play level 'KeyInBox': it failed {MOST_FAILURES} times in a row, at "
        r"last: it gives up at step \d+ \(AssertionError\), seed \d+; leave the level out",
    ):
        record_demonstrations(["KeyInBox"], 5)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[WorkerProcess]:
    """Those that are started."""
    started: list[WorkerProcess] = []

    class NotedWorker(WorkerProcess):
        def __init__(self, function: str, name: str) -> None:
            super().__init__(function, name)
            started.append(self)

    monkeypatch.setattr(demonstrations, "WorkerProcess", NotedWorker)
    return started


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")
def test_an_interrupt_leaves_no_process(workers: list[WorkerProcess]) -> None:
    def interrupt(level: str, n: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_demonstrations(["GoToObj"], 50, n_workers=1, progress=interrupt)
    assert len(workers) == 1
    assert not is_running(workers[0].pid)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")
def test_a_worker_that_dies_takes_the_others_along(workers: list[WorkerProcess]) -> None:
    def kill(level: str, n: int) -> None:
        os.kill(workers[-1].pid, signal.SIGKILL)

    with pytest.raises(SimulationError, match="a worker that plays the bot died: SIGKILL"):
        record_demonstrations(["GoToObj"], 50, n_workers=2, progress=kill)
    assert len(workers) == 2
    assert not any(is_running(worker.pid) for worker in workers)
