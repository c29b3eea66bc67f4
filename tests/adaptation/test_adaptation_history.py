"""How a new task settles: what adaptation keeps of its row and its scores, and what is drawn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from helpers.new_tasks import train_source
from mttl.adaptation.new_tasks import adapt_to
from mttl.analysis.figures import canvas
from mttl.analysis.routing_record import read_arrays, read_history, read_record
from mttl.assembly.model import load_run
from mttl.commands import plot as SCRIPT
from mttl.training.monitors import routing_weights

READING = importlib.import_module("mttl.commands.routing_report.read_routing")


def test_the_row_is_kept_from_its_start_to_its_end(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(canvas, "DOTS_PER_INCH", 20)  # nothing here looks at pixels
    run = train_source(tmp_path)
    words = [("ab", "abab"), ("b", "bb"), ("c", "cc"), ("ac", "acac")]
    settings = {"mode": "router_only", "max_steps": 45, "eval_every": 10, "router_lr": 0.5}
    adapted = adapt_to(run, words, task="twice", **settings)
    adapted.save(tmp_path / "twice")

    record = read_record(run)
    history = read_history(tmp_path / "twice")
    assert history is not None
    # Twenty records and one at each score; the last step is scored too.
    assert history.steps.tolist() == sorted({*range(0, 45, 2), 10, 20, 30, 40, 45})
    mean_logits = load_run(run).model.router.task_logits().mean(1, keepdim=True)
    start = (mean_logits.sigmoid() / mean_logits.sigmoid().sum(-1, keepdim=True)).detach()
    half = {"rtol": 1e-3}  # rows are written in half precision
    np.testing.assert_allclose(history.weights[0][:, 0], start[:, 0, 0].numpy(), **half)
    kept = history.weights[history.steps.tolist().index(adapted.result.step)]
    np.testing.assert_allclose(kept, routing_weights(adapted.model.router), **half)
    assert np.abs(history.weights[-1] - history.weights[0]).max() > 0.01
    names = ("score_steps", "scores")
    arrays = read_arrays(tmp_path / "twice" / "plots" / "routing_history.npz", names)
    assert arrays["score_steps"].tolist() == [0, 10, 20, 30, 40, 45]
    assert arrays["scores"].max() == pytest.approx(adapted.result.dev)

    # The map shows the way, which ends near the point of the kept row.
    view = READING.read_view(run, [str(tmp_path / "twice")])
    assert view.trails["twice"].shape == (len(history.steps), *record.weights.shape[::2])
    assert SCRIPT.main([str(run), "--adapted", str(tmp_path / "twice")]) == 0
    assert "lines: adapted tasks" in (run / "plots" / "task_map_pca.svg").read_text()
    capsys.readouterr()


def test_without_steps_there_is_the_first_row_alone(tmp_path: Path) -> None:
    run = train_source(tmp_path)
    adapted = adapt_to(run, [("ab", "abab"), ("b", "bb")], task="twice", mode="zero_shot")
    adapted.save(tmp_path / "twice")
    history = read_history(tmp_path / "twice")
    assert history is not None
    assert history.steps.tolist() == [0]
    assert read_history(tmp_path / "nowhere") is None
