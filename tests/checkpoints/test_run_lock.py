"""A run's folder is locked, and must be the same for all processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mttl.checkpoints import run_lock
from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.run_lock import RunLock
from mttl.io.errors import ConfigError


def test_a_folder_that_not_all_machines_see_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[Any] = [["seed: 1"], [("node0", True), ("node1", False)]]
    monkeypatch.setattr(run_lock, "gathered", lambda value: answers.pop(0))
    monkeypatch.setattr(run_lock, "PATIENCE", 0.0)
    lock = RunLock(RunFolder(tmp_path / "run"))
    match = r"'.*run' of the first process is not that of node1: run.dir must be a folder that all"
    with pytest.raises(ConfigError, match=match):
        lock.setup(SimpleNamespace(is_global_zero=False), None, "fit")  # type: ignore[arg-type]
