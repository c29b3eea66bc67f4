import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.skills import ROUTERS, spread
from mttl.routing import PolytroponRouter, PrivateRouter, TaskRouter
from mttl.training.loggers import MetricsFile
from mttl.training.monitors import RoutingMonitor, as_rows, routing_statistics

GROUPS = ("encoder", "decoder")
TASKS = ("a", "b")


def probabilities(*rows: list[float]) -> torch.Tensor:
    """Return one group per row, with one task and one head."""
    return torch.tensor(rows)[:, None, None, :]


def test_statistics_of_the_stacks_and_of_all() -> None:
    groups = ("encoder.block.0", "decoder.block.0", "decoder.block.1")
    found = routing_statistics(probabilities([1, 0], [0.5, 0.5], [0.75, 0.25]), groups)
    # The entropy of 1/4 and 3/4 in bits, which is also that of one cell.
    entropy = 2 - 0.75 * math.log2(3)
    assert found == pytest.approx(
        {
            "routing/discreteness": 1 - (0 + 1 + entropy) / 3,
            "routing/active_cells": 2 / 6,
            "routing/usage": (0 + 1 + entropy) / 3,
            "routing/encoder/discreteness": 1.0,
            "routing/encoder/active_cells": 1 / 2,
            "routing/encoder/usage": 0.0,
            "routing/decoder/discreteness": 1 - (1 + entropy) / 2,
            "routing/decoder/active_cells": 1 / 4,
            "routing/decoder/usage": (1 + entropy) / 2,
        }
    )


@pytest.mark.parametrize("kind", ROUTERS)
def test_statistics_of_every_router_are_numbers_in_range(kind: str) -> None:
    router = spread(ROUTERS[kind](2, 3, 1, 4))
    with torch.no_grad():
        found = routing_statistics(router.probabilities(), GROUPS)
    assert len(found) == 9
    # Rounding in double precision.
    assert all(-1e-9 <= value <= 1 + 1e-9 for value in found.values())


class Watched:
    """A monitor and what it needs of a run: the step, a router and a file of metrics."""

    def __init__(self, folder: Path, router: TaskRouter) -> None:
        self.folder = folder
        self.router = router
        self.monitor = RoutingMonitor(folder, GROUPS, TASKS)
        self.metrics = MetricsFile(folder / "metrics.csv")

    def at(self, step: int, hook: str, *, first: bool = True) -> None:
        trainer: Any = SimpleNamespace(
            global_step=step, is_global_zero=first, loggers=[self.metrics]
        )
        module: Any = SimpleNamespace(model=SimpleNamespace(router=self.router))
        getattr(self.monitor, hook)(trainer, module)

    def history(self) -> Any:
        return np.load(self.folder / "routing_history.npz", allow_pickle=False)


def test_history_has_the_start_every_validation_and_the_end_each_once(tmp_path: Path) -> None:
    run = Watched(tmp_path, spread(PolytroponRouter(2, 2, 1, 3)))
    expected = []
    for step, hook in ((0, "on_train_start"), (4, "on_validation_end"), (8, "on_validation_end")):
        spread(run.router, seed=step)
        expected.append(as_rows(run.router.matrix()))
        run.at(step, hook)
    run.at(8, "on_train_end")  # the last validation was at the last step
    history = run.history()
    assert history["steps"].tolist() == list(run.metrics.rows) == [0, 4, 8]
    assert history["tasks"].tolist() == list(TASKS)
    assert history["groups"].tolist() == list(GROUPS)
    # Kept in float16: 11 significant bits.
    np.testing.assert_allclose(history["weights"], np.stack(expected), rtol=2**-11)
    assert run.metrics.rows[8]["routing/discreteness"] == pytest.approx(
        routing_statistics(run.router.probabilities().detach(), GROUPS)["routing/discreteness"]
    )


def test_one_process_writes_and_records_are_due_by_steps(tmp_path: Path) -> None:
    run = Watched(tmp_path, PrivateRouter(2, 2))
    run.at(499, "on_train_batch_end", first=False)
    assert not run.monitor.steps
    run.at(500, "on_train_batch_end", first=False)
    assert run.monitor.steps == [500]
    assert not run.monitor.path.exists()


def test_history_continues_across_a_resume(tmp_path: Path) -> None:
    router = spread(PolytroponRouter(2, 2, 1, 3))
    earlier = Watched(tmp_path / "one", router)
    earlier.at(0, "on_train_start")
    earlier.at(4, "on_validation_end")
    state = earlier.monitor.state_dict()
    earlier.at(6, "on_validation_end")  # lost: it came after the state was saved
    spread(router, seed=1)
    later = Watched(tmp_path / "two", router)
    later.monitor.load_state_dict(state)
    later.at(6, "on_train_start")  # an uninterrupted run records nothing there
    later.at(8, "on_train_end")
    assert later.history()["steps"].tolist() == [0, 4, 8]
    np.testing.assert_array_equal(later.history()["weights"][:2], earlier.history()["weights"][:2])
