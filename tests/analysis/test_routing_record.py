"""What a run wrote down is read back, and what it did not is answered in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mttl.analysis.routing_record import read_record
from mttl.io.errors import CheckpointError

Write = Callable[..., Path]


def rewrite(path: Path, **changes: Any) -> None:
    """Write an archive again with other arrays; None leaves one out."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file} | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def test_a_run_is_read(write_run: Write, tmp_path: Path) -> None:
    record = read_record(write_run(tmp_path / "run"))
    assert record.tasks == ("past", "plural", "clock", "date")
    assert record.groups[0] == "encoder.block.0.q"
    assert record.weights.shape == (4, 4, 3)
    np.testing.assert_allclose(record.weights.sum(-1), 1, atol=1e-6)
    assert record.history is not None
    assert record.history.steps.tolist() == [0, 500]
    np.testing.assert_array_equal(record.history.weights[1], record.weights)
    # Rows of the metrics without a value are left out, and so are other columns.
    curves = {name: (x.tolist(), y.tolist()) for name, (x, y) in record.curves.items()}
    assert curves == {"usage": ([0, 500], [1, 0.9]), "encoder/usage": ([0, 500], [1, 0.8])}


def test_probabilities_are_read_where_they_are(write_run: Write, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rewrite(run / "plots" / "routing.npz", probabilities=np.full((4, 4, 3), 0.5))
    np.testing.assert_array_equal(read_record(run).probabilities, 0.5)


def test_heads_are_groups(write_run: Write, tmp_path: Path) -> None:
    record = read_record(write_run(tmp_path / "run", n_heads=2))
    assert record.groups[:2] == ("encoder.block.0.q/head 0", "encoder.block.0.q/head 1")
    assert record.weights.shape == (8, 4, 3)


def test_a_run_without_history_is_read_too(write_run: Write, tmp_path: Path) -> None:
    record = read_record(write_run(tmp_path / "run", history=False))
    assert (record.history, record.curves) == (None, {})


def test_a_folder_without_routing_is_answered(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"plots/routing\.npz' does not exist.*--resume"):
        read_record(tmp_path)


@pytest.mark.parametrize(("changes", "message"), [({"tasks": None}, "lacks tasks")])
def test_arrays_that_do_not_fit_are_answered(write_run, tmp_path, changes, message) -> None:
    run = write_run(tmp_path / "run")
    rewrite(run / "plots" / "routing.npz", **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_record(run)
    assert "Copy the whole folder again" in str(caught.value)


@pytest.mark.parametrize(("changes", "message"), [({"steps": None}, "lacks steps")])
def test_a_history_that_does_not_fit_is_answered(write_run, tmp_path, changes, message) -> None:
    run = write_run(tmp_path / "run")
    rewrite(run / "plots" / "routing_history.npz", **changes)
    with pytest.raises(CheckpointError, match=message):
        read_record(run)


@pytest.mark.parametrize("name", ["routing.npz", "routing_history.npz"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 and then nothing"])
def test_damaged_files_are_answered(write_run, tmp_path, name, content) -> None:
    run = write_run(tmp_path / "run")
    (run / "plots" / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}' is damaged"):
        read_record(run)


def test_damaged_metrics_are_answered(write_run: Write, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "metrics.csv").write_text("step,routing/usage\none,0.5\n")
    with pytest.raises(CheckpointError, match=r"metrics\.csv' is damaged"):
        read_record(run)
