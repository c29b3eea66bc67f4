from pathlib import Path

import pytest

from helpers.command import column
from mttl.training.metrics_file import MetricsFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.csv"


@pytest.fixture
def earlier(path: Path) -> Path:
    """A file with the steps 0, 4 and 8."""
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 2.5}, 0)
    file.log_metrics({"train/loss": 2.25, "val/score": 0.5}, 4)
    file.log_metrics({"train/loss": 2.0, "late": 1.0}, 8)
    file.save()
    return path


def test_a_row_per_step_with_what_was_logged_at_it(path: Path) -> None:
    file = MetricsFile(path)
    file.log_metrics({"train/loss": 0.1}, 0)
    file.log_metrics({"train/loss": 1e-7, "lr": 0.5}, 10)
    file.log_metrics({"a,b": 2.0}, 10)
    file.log_metrics({"train/loss": float("nan")}, 5)  # late, but in its place
    file.save()
    assert path.read_text() == ('step,"a,b",lr,train/loss\n0,,,0.1\n5,,,nan\n10,2.0,0.5,1e-07\n')


def test_a_resumed_run_keeps_what_came_before_and_drops_what_comes_again(earlier: Path) -> None:
    file = MetricsFile(earlier, keep_until=4)
    file.log_metrics({"train/loss": 1.5, "val/loss": 3.0}, 8)
    file.log_metrics({"val/loss": 4.0}, 4)
    file.save()
    assert column(earlier, "train/loss") == {0: 2.5, 4: 2.25, 8: 1.5}
    assert column(earlier, "val/score") == {4: 0.5}
    assert column(earlier, "val/loss") == {4: 4.0, 8: 3.0}
    assert "late" not in earlier.read_text()


def test_a_resumed_run_that_logs_nothing_changes_no_byte(earlier: Path) -> None:
    before = earlier.read_bytes()
    MetricsFile(earlier, keep_until=8).finalize("success")
    assert earlier.read_bytes() == before


def test_a_new_run_starts_anew(earlier: Path) -> None:
    file = MetricsFile(earlier)
    file.log_metrics({"train/loss": 9.0}, 2)
    file.save()
    file.log_metrics({"val/score": 0.25}, 3)  # a later column
    file.finalize("success")
    assert earlier.read_text() == "step,train/loss,val/score\n2,9.0,\n3,,0.25\n"
