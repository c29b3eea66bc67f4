"""What a run wrote down is read back, and what it did not is answered in words."""

import numpy as np
import pytest

from mttl.analysis.routing_record import read_record
from mttl.io.errors import CheckpointError


def test_a_run_is_read(write_run, tmp_path) -> None:
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


def test_heads_are_groups_and_a_run_without_history_is_read_too(write_run, tmp_path) -> None:
    record = read_record(write_run(tmp_path / "run", n_heads=2, history=False))
    assert record.groups[:2] == ("encoder.block.0.q/head 0", "encoder.block.0.q/head 1")
    assert record.weights.shape == (8, 4, 3)
    assert (record.history, record.curves) == (None, {})
    with pytest.raises(CheckpointError, match=r"plots/routing\.npz' does not exist.*--resume"):
        read_record(tmp_path)


def test_what_is_damaged_or_lacks_something_is_answered(write_run, tmp_path) -> None:
    run = write_run(tmp_path / "run")
    for name, lacking in (("routing_history", "steps"), ("routing", "tasks")):
        path = run / "plots" / f"{name}.npz"
        with np.load(path) as file:
            arrays = {key: file[key] for key in file if key != lacking}
        whole = path.read_bytes()
        for content in (b"", b"no archive", b"PK\x03\x04 and then nothing"):
            path.write_bytes(content)
            with pytest.raises(CheckpointError, match=rf"{name}.npz' is damaged"):
                read_record(run)
        np.savez(path, **arrays)
        with pytest.raises(CheckpointError, match=rf"\('{lacking}'\). Copy the whole folder again"):
            read_record(run)
        path.write_bytes(whole)
    (run / "metrics.csv").write_text("step,routing/usage\none,0.5\n")
    with pytest.raises(CheckpointError, match=r"metrics\.csv' is damaged"):
        read_record(run)
