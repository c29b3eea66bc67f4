"""Adapted tasks are kept, loaded again as they were, and their way is drawn."""

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import mttl
from helpers.command import note_again, read_csv
from helpers.new_tasks import NEW, PAIRS, STEPS, adapted, logits, train_source
from mttl.adaptation.add_tasks import add_tasks
from mttl.analysis.figures import canvas
from mttl.analysis.routing_record import read_arrays, read_history, read_record
from mttl.assembly.model import load_run
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.commands import plot as SCRIPT
from mttl.io.errors import CheckpointError
from mttl.training.monitors import as_rows


@pytest.fixture(scope="module")
def kept(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder") / "new"
    adapted(run, "all").save(folder)
    return folder


@pytest.mark.parametrize(
    ("mode", "settings", "files"),
    [
        ("router_only", {"init": "best_coefficients"}, []),
        ("router_only", {"init": "coefficients", "gradient_free": True}, []),
        ("in_context", {"context_length": 128}, []),
        ("all", {}, ["skills"]),
        ("average", {}, ["skills"]),
        ("skills_only", {"init": "private_skill"}, ["skills"]),
        ("full", {}, ["backbone", "skills"]),
    ],
)
def test_it_answers_as_before(run, tmp_path, mode, settings, files) -> None:
    before = adapted(run, mode, **settings)
    before.save(tmp_path / "new")
    names = sorted(path.stem for path in (tmp_path / "new" / "skills").glob("*.safetensors"))
    assert names == sorted([*files, "router"])
    after = mttl.load(tmp_path / "new")
    assert after.tasks == ("new",)
    assert after.form == before.form
    assert dict(after.search) == before.search
    assert torch.equal(after.model.router.matrix(), before.model.router.matrix())
    assert torch.equal(logits(after, "new"), logits(before, "new"))
    assert not torch.equal(logits(after, "new"), logits(mttl.load(run), "copy"))
    assert after.predict("new", ["ab", "c"]) == before(["ab", "c"])


def test_a_learned_row_of_a_plain_router_is_kept_as_such(tmp_path: Path) -> None:
    """Whatever the run's own router is."""
    unscored = ["trainer.max_steps=1", "data.validation=none", "data.evaluate=[]"]
    run = train_source(tmp_path, settings=["router.straight_through=true", *unscored])
    before = adapted(run, "router_only", init="learned")
    before.save(tmp_path / "kept")
    after = mttl.load(tmp_path / "kept")
    assert not after.model.router.straight_through
    assert torch.equal(after.model.router.matrix(), before.model.router.matrix())
    message = r"its router\.straight_through is False, but the run's is T"
    with pytest.raises(CheckpointError, match=message):
        add_tasks(tmp_path, read_inventory(run), [read_inventory(tmp_path / "kept")])


def test_the_folder_says_what_it_scored(run: Path, kept: Path) -> None:
    (row,) = read_csv(kept / "results.csv")
    assert (row["task"], row["split"], row["metric"], row["n"]) == ("new", "dev", "exact", "4")
    lines = (kept / "predictions" / "new_dev.jsonl").read_text().splitlines()
    assert [json.loads(line)["input"] for line in lines] == [f"[new] {x}" for x, _ in PAIRS[1::2]]
    assert (kept / "config.yaml").is_file()


def test_it_is_adapted_again_merged_and_kept_again(kept: Path, run: Path, tmp_path: Path) -> None:
    config = str(run.parents[1] / "tiny.yaml")
    again = mttl.adapt_to(kept, PAIRS, task="newer", mode="router_only", config=config, **STEPS)
    again.save(tmp_path / "newer")
    assert torch.equal(logits(mttl.load(tmp_path / "newer"), "newer"), logits(again, "newer"))
    from mttl.commands import merge_task as merge

    assert merge.main([str(kept), "--task", "new", "--out", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_the_command_keeps_every_job(run: Path, tmp_path: Path) -> None:
    from mttl.commands import adapt as command

    config, out = str(run.parents[1] / "tiny.yaml"), tmp_path / "out"
    given = ["-c", config, "--from", str(run), "--out", str(out), "--tasks", "first"]
    given += ["-k", *(f"adapt.{name}={value}" for name, value in STEPS.items())]
    assert command.main([*given, "--samples", "13"]) == 0
    assert not (out / "models").exists()
    assert command.main([*given, "--save"]) == 0
    lines = (out / "results.jsonl").read_text()
    assert len(lines.splitlines()) == 2
    models = sorted((out / "models").iterdir())
    assert [path.name for path in models] == ["first-100-13", "first-13-13"]
    for folder in models:
        loaded = mttl.load(folder)
        rows = (folder / "predictions" / "first_test.jsonl").read_text().splitlines()
        for row in map(json.loads, rows):
            question = row["input"].removeprefix("[first] ")
            assert loaded.predict("first", [question]) == [row["prediction"]]
    shutil.rmtree(models[0])
    before = (models[1] / "skills" / "meta.json").stat().st_mtime_ns
    assert command.main([*given, "--save"]) == 0
    assert models[0].is_dir()
    assert (models[1] / "skills" / "meta.json").stat().st_mtime_ns == before
    assert (out / "results.jsonl").read_text() == lines
    assert set(NEW) >= {"first"}


def test_the_run_may_move(run: Path, tmp_path: Path) -> None:
    """Together with what was adapted from it, or alone if it is named."""
    home = tmp_path / "home"
    shutil.copytree(run, home / "source")
    adapted(home / "source", "router_only").save(home / "source" / "models" / "new")
    home.rename(tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere" / "source" / "models" / "new"
    expected = logits(mttl.load(folder), "new")
    folder.rename(tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"', which does not exist. Name the run with --from"):
        mttl.load(tmp_path / "new")
    found = mttl.load(tmp_path / "new", run=tmp_path / "elsewhere" / "source")
    assert torch.equal(logits(found, "new"), expected)


def test_another_inventory_is_refused(run: Path, kept: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    before = adapted(other, "router_only")
    path = other / "skills" / "router.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    note_again(other / "skills")
    with pytest.raises(CheckpointError, match="was adapted from another inventory"):
        mttl.load(kept, run=other)
    with pytest.raises(CheckpointError, match="has changed since it was loaded"):
        before.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(FileExistsError):
        adapted(run, "router_only").save(kept)
    with pytest.raises(CheckpointError, match="is a run, not an adapted task"):
        mttl.load(run, run=other)


READING = importlib.import_module("mttl.commands.routing_report.read_routing")


@pytest.mark.slow
def test_the_row_is_kept_from_its_start_to_its_end(run, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(canvas, "DOTS_PER_INCH", 20)  # nothing here looks at pixels
    words = [("ab", "abab"), ("b", "bb"), ("c", "cc"), ("ac", "acac")]
    settings = {"mode": "router_only", "max_steps": 45, "eval_every": 10, "router_lr": 0.5}
    found = mttl.adapt_to(run, words, task="twice", **settings)
    found.save(tmp_path / "twice")

    record = read_record(run)
    history = read_history(tmp_path / "twice")
    assert history is not None
    # Twenty records and one at each score; the last step is scored too.
    assert history.steps.tolist() == sorted({*range(0, 45, 2), 10, 20, 30, 40, 45})
    mean_logits = load_run(run).model.router.task_logits().mean(1, keepdim=True)
    start = (mean_logits.sigmoid() / mean_logits.sigmoid().sum(-1, keepdim=True)).detach()
    half = {"rtol": 1e-3}  # rows are written in half precision
    np.testing.assert_allclose(history.weights[0][:, 0], start[:, 0, 0].numpy(), **half)
    kept = history.weights[history.steps.tolist().index(found.result.step)]
    np.testing.assert_allclose(kept, as_rows(found.model.router.matrix()), **half)
    assert np.abs(history.weights[-1] - history.weights[0]).max() > 0.01
    names = ("score_steps", "scores")
    arrays = read_arrays(tmp_path / "twice" / "plots" / "routing_history.npz", names)
    assert arrays["score_steps"].tolist() == [0, 10, 20, 30, 40, 45]
    assert arrays["scores"].max() == pytest.approx(found.result.dev)

    # The map shows the way, which ends near the point of the kept row.
    view = READING.read_view(run, [str(tmp_path / "twice")])
    assert view.trails["twice"].shape == (len(history.steps), *record.weights.shape[::2])
    assert SCRIPT.main([str(run), "--adapted", str(tmp_path / "twice")]) == 0
    assert "lines: adapted tasks" in (run / "plots" / "task_map_pca.svg").read_text()
    capsys.readouterr()

    # Without steps there is the first row alone.
    adapted(run, "zero_shot").save(tmp_path / "still")
    history = read_history(tmp_path / "still")
    assert history is not None
    assert history.steps.tolist() == [0]
    assert read_history(tmp_path / "nowhere") is None
