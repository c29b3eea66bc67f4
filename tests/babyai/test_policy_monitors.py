"""What is said about the episodes of a training, and when it ends."""

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mttl.babyai.policy_monitors import EpisodeMonitor, percentages
from mttl.babyai.rl.learning_curve import EpisodeLog
from mttl.config.babyai_schema import Rl


def trainer(**changed: Any) -> Any:
    class Rows:
        rows: list[dict[str, float]] = []  # noqa: RUF012

        def log_metrics(self, row: dict[str, float], step: int) -> None:
            self.rows.append(row)

    values = {
        **{"loggers": [Rows()], "world_size": 1, "is_global_zero": True, "global_step": 7},
        **{"current_epoch": 0, "max_epochs": 100, "should_stop": False},
    }
    return SimpleNamespace(**{**values, **changed})


def play(log: EpisodeLog, *won: bool) -> None:
    """End an episode of every level."""
    ended = np.ones((len(won), 1), bool)
    reward = np.array(won, np.float32)[:, None]
    log.update(ended, ~ended, reward, np.full((len(won), 1), 5))


def test_training_ends_once_every_level_was_solved_in_ten_rollouts() -> None:
    log, text = EpisodeLog(["A", "B"], 2), io.StringIO()
    rl = Rl(levels=["A", "B"], success_rate=0.96, stop_when_solved=True)
    monitor = EpisodeMonitor(log, rl, Console(file=text, width=120))
    run = trainer()
    for number in range(12):
        play(log, True, number > 0)
        monitor.on_train_epoch_end(run, None)  # type: ignore[arg-type]
        # The second row is the first with two episodes; B has won both from the third on.
        assert run.should_stop == (number >= 11), number
        if run.should_stop:
            break
    assert "Every level succeeds in 96% of its last 2 episodes: training ends." in text.getvalue()


def test_rows_leave_out_what_is_not_known_yet() -> None:
    log, run = EpisodeLog(["A", "B"], 1), trainer()
    ended = np.array([[True], [False]])
    log.update(ended, ended & False, ended.astype(np.float32), np.ones((2, 1), int))
    monitor = EpisodeMonitor(log, Rl(levels=["A", "B"]), Console(quiet=True))
    monitor.on_train_epoch_end(run, None)  # type: ignore[arg-type]
    (row,) = run.loggers[0].rows
    assert row["success/A"] == 1.0
    assert "success/B" not in row
    assert percentages({"A": 0.456, "B": float("nan")}) == "A 46  B –"


def test_counts_of_several_processes_are_added_up() -> None:
    """The reduction stands in for two processes of which the other has played nothing."""
    log = EpisodeLog(["A"], 1)
    play(log, True)
    strategy = SimpleNamespace(root_device="cpu", reduce=lambda values, reduce_op: values / 2)
    monitor = EpisodeMonitor(log, Rl(levels=["A"]), Console(quiet=True))
    row = monitor.row(trainer(world_size=2, strategy=strategy))
    assert (row["episodes"], row["frames"]) == (1.0, 1.0)
    assert row["success/A"] == pytest.approx(0.5)
