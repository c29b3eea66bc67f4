"""The bot plays or says why not; records are the same for any number of workers, and in files."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
import numpy as np
import pytest
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs import demonstrations
from envs.demonstrations import (
    MOST_FAILURES,
    Demonstration,
    demonstrate,
    load_demonstrations,
    record_demonstrations,
    save_demonstrations,
)
from envs.interface import SimulationError
from envs.levels import LEVELS as ALL
from envs.levels import LevelError
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

    def demonstrate(level: str, seed: int) -> Demonstration | str:
        if seed == record[1].seed:
            return "it dreams"
        return by_seed[seed]

    monkeypatch.setattr(demonstrations, "demonstrate", demonstrate)
    short = record_demonstrations(LEVELS[:1], 11, seed=3)
    assert as_lists(short) == as_lists([record[0], *record[2:12]])


def test_what_the_bot_cannot_play_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = demonstrate("Unlock", 63)
    assert failure == "it gives up at step 161 (TimeoutError its plan is not complete), seed 63"
    with pytest.raises(
        LevelError,
        match=f"bot cannot play level 'KeyInBox': it failed {MOST_FAILURES} times in a row, "
        r"most recently: it gives up at step \d+ \(AssertionError\), seed \d+; leave the level out",
    ):
        record_demonstrations(["KeyInBox"], 5)
    monkeypatch.setattr(demonstrations._BoundedBot, "replan", lambda self: 6)
    assert demonstrate("GoToObj", 0) == "its 64 steps do not fulfil the mission, seed 0"


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_ends_a_record_leaves_no_process(killed: bool, monkeypatch) -> None:
    workers: list[WorkerProcess] = []

    class NotedWorker(WorkerProcess):
        def __init__(self, function: str, name: str) -> None:
            super().__init__(function, name)
            workers.append(self)

    def end(level: str, n: int) -> None:
        if not killed:
            raise KeyboardInterrupt
        os.kill(workers[-1].pid, signal.SIGKILL)

    monkeypatch.setattr(demonstrations, "WorkerProcess", NotedWorker)
    error, message = KeyboardInterrupt, None
    if killed:
        error, message = SimulationError, "a worker with the bot died: SIGKILL"
    with pytest.raises(error, match=message):
        record_demonstrations(["GoToObj"], 50, n_workers=1 + killed, progress=end)
    assert len(workers) == 1 + killed
    assert not any(is_running(worker.pid) for worker in workers)


def test_what_is_saved_is_loaded(record: list[Demonstration], tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.npz"
    save_demonstrations(record, path)
    assert as_lists(load_demonstrations(path)) == as_lists(record)
    # Images compress well.
    assert path.stat().st_size < 0.2 * sum(one.images.size for one in record)
    before = path.read_bytes()
    broken = replace(record[0], images=record[0].images[:, :3])
    with pytest.raises(ValueError, match="dimensions"):
        save_demonstrations([record[1], broken], path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["record.npz"]
    # Foreign, damaged and missing files.
    np.savez(path, images=record[0].images)
    for data in (path.read_bytes(), b"text", before[: len(before) // 2]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="' is not a file of demonstrations, or damaged: "):
            load_demonstrations(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_demonstrations(path)


@pytest.mark.parametrize(
    ("level", "seed"), [("PickupLoc", 0), ("PutNextLocal", 1), ("Synth", 2), ("BossLevel", 3)]
)
def test_a_demonstration_is_what_the_bot_does_in_minigrid(level: str, seed: int) -> None:
    demonstration = demonstrate(level, seed)
    env = gymnasium.make(ALL[level].id, disable_env_checker=True)
    seen, _ = env.reset(seed=seed)
    original = BabyAIBot(env)
    assert (demonstration.level, demonstration.seed) == (level, seed)
    assert demonstration.mission == seen["mission"]
    n_steps = len(demonstration.actions)
    reward: Any = 0
    assert demonstration.images.shape == (n_steps, 7, 7, 3)
    assert demonstration.directions.shape == (n_steps,)
    for step, action in enumerate(demonstration.actions):
        assert action == original.replan()
        np.testing.assert_array_equal(demonstration.images[step], seen["image"])
        assert demonstration.directions[step] == seen["direction"]
        seen, reward, terminated, _, _ = env.step(action)
        assert terminated == (step == n_steps - 1)
    assert reward > 0
    for array in (demonstration.images, demonstration.directions, demonstration.actions):
        assert array.dtype == np.uint8
