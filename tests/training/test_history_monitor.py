"""Arrays of some steps, in a file and across a resume."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mttl.training.monitors import HistoryMonitor


class Ones(HistoryMonitor):
    def arrays(self, history: np.ndarray) -> dict[str, Any]:
        return {"ones": history}


class Logged:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.rows.append((step, values))


def at(step: int, logger: Logged, first: bool = True) -> Any:
    return SimpleNamespace(global_step=step, loggers=[logger], is_global_zero=first)


def test_records_go_on_after_a_resume(tmp_path: Path) -> None:
    path, logger = tmp_path / "plots" / "ones.npz", Logged()
    monitor = Ones(path, 3)
    assert [monitor.is_due(at(step, logger)) for step in (2, 3)] == [False, True]
    monitor.record(at(3, logger), np.ones(2), {"x": 1.0})
    torch.save(monitor.state_dict(), tmp_path / "state")
    again = Ones(path, 3)
    again.load_state_dict(torch.load(tmp_path / "state"))
    assert [again.is_due(at(step, logger)) for step in (5, 6)] == [False, True]
    again.record(at(7, logger), 2 * np.ones(2), {"x": 2.0})
    kept = np.load(path)
    assert kept["steps"].tolist() == [3, 7]
    assert kept["ones"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert logger.rows == [(3, {"x": 1.0}), (7, {"x": 2.0})]


def test_one_process_writes(tmp_path: Path) -> None:
    monitor = Ones(tmp_path / "ones.npz", 3)
    monitor.record(at(3, Logged(), first=False), np.ones(2), {})
    assert not monitor.path.exists()
    assert monitor.steps == [3]
