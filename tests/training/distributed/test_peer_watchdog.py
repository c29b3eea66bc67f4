"""What one process says of the others; there are none here."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mttl.checkpoints import run_lock
from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.run_lock import RunLock
from mttl.errors import ConfigError
from mttl.runtime import child_process
from mttl.training.distributed import peer_watchdog
from mttl.training.distributed.peer_watchdog import PeerWatchdog, take_leave


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set here is forgotten."""
    monkeypatch.setattr(os, "environ", {**os.environ})
    for name in (*peer_watchdog.NCCL, "LOCAL_RANK", child_process.LAUNCHER):
        os.environ.pop(name, None)
    monkeypatch.setattr(child_process, "_LOOK", 0.01)


def trainer(**settings: Any) -> Any:
    environment = SimpleNamespace(main_address="here")
    given = {"world_size": 2, "num_nodes": 2, "global_rank": 0, "is_global_zero": True}
    return SimpleNamespace(
        **given | settings, strategy=SimpleNamespace(cluster_environment=environment)
    )


def test_processes_that_cannot_reach_each_other_train_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_watchdog, "meet", lambda *asked: ([], f"{asked}: refused"))
    callback = PeerWatchdog()
    with pytest.warns(UserWarning, match=r"cannot watch one another \(\(0, 2, 'here'\): refused\)"):
        callback.setup(trainer(), None, "fit")  # type: ignore[arg-type]
    take_leave(trainer(callbacks=[callback]))


def test_what_somebody_set_for_nccl_is_kept() -> None:
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "7"
    PeerWatchdog()
    assert {name: os.environ[name] for name in peer_watchdog.NCCL} == {
        **peer_watchdog.NCCL,
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7",
    }


def test_a_process_follows_the_one_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def end(what: str) -> None:
        ended.append(what)
        os.environ.pop(child_process.LAUNCHER)  # in truth nothing comes after it

    def follow(parent: int, **variables: str) -> list[str]:
        ended.clear()
        monkeypatch.setattr(os, "getppid", lambda: parent)
        os.environ.update(variables)
        before = set(child_process.threading.enumerate())
        child_process.follow_launcher(end)
        for thread in set(child_process.threading.enumerate()) - before:
            thread.join(0.2)
        child_process.forget_launcher()
        return [*ended]

    child_process.note_launcher()
    assert os.environ[child_process.LAUNCHER] == str(os.getpid())
    assert not follow(1, LOCAL_RANK="0")  # it is the one that has started others
    child_process.forget_launcher()
    assert child_process.LAUNCHER in os.environ
    assert not follow(7, MTTL_LAUNCHER="7")
    assert follow(1, MTTL_LAUNCHER="7") == [
        "the process that started this one (7) is gone: it was killed"
    ]
    assert not follow(1, MTTL_LAUNCHER="7", TORCHELASTIC_RUN_ID="run")


def test_a_folder_that_not_all_machines_see_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[Any] = [["seed: 1"], [("node0", True), ("node1", False)]]
    monkeypatch.setattr(run_lock, "gathered", lambda value: answers.pop(0))
    monkeypatch.setattr(run_lock, "PATIENCE", 0.0)
    lock = RunLock(RunFolder(tmp_path / "run"))
    match = r"'.*run' of the first process is not that of node1: run.dir must be a folder that all"
    with pytest.raises(ConfigError, match=match):
        lock.setup(trainer(is_global_zero=False), None, "fit")  # type: ignore[arg-type]
