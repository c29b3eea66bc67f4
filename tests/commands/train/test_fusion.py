"""Two stages through the command: skills first, then attention over them."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.command import column, load_recipe, train
from helpers.gyms import write_config, write_gym
from mttl.__main__ import main
from mttl.assembly.model import load_run
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.commands import adapt

STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=2", "data.evaluate=[dev]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("fusion")
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    first = train(config, "first", *STEPS).path
    files = f"{first / 'config.yaml'}+aggregation/fusion.yaml"
    overrides = (f"aggregation.source={first}", *STEPS)
    train(files, "second", *overrides)
    return first, first.with_name("second")


def test_the_skills_are_those_of_the_first_stage(runs: tuple[Path, Path]) -> None:
    first, second = (read_inventory(run) for run in runs)
    for name, value in first.skills.items():
        path, _, part = name.rpartition(".")
        assert torch.equal(second.skills[f"{path}.skills.{part}"], value)
    assert first.backbone is not None
    assert second.backbone is not None
    assert all(torch.equal(second.backbone[name], value) for name, value in first.backbone.items())
    moved = [value for name, value in second.skills.items() if name.endswith("value_change")]
    assert moved
    assert all(value.any() for value in moved)


def test_the_record_is_the_attention_of_every_task(runs: tuple[Path, Path]) -> None:
    run = load_run(runs[1])
    with np.load(runs[1] / "plots" / "routing.npz") as record:
        weights = record["weights"]
    layers = run.model.skilled_layers()
    assert weights.shape == (len(layers), 3, 3)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert np.ptp(weights, axis=1).max() > 1e-6  # tasks differ
    # Nothing records the router, which learns nothing.
    assert not (runs[1] / "plots" / "routing_history.npz").exists()
    assert column(runs[1] / "metrics.csv", "train/loss")
    # The figures show it.
    view = importlib.import_module("mttl.commands.routing_report.read_routing").read_view(runs[1])
    assert np.array_equal(view.record.probabilities, view.record.weights)


def test_it_resumes_and_is_adapted(runs: tuple[Path, Path], tmp_path: Path, refused) -> None:
    second = runs[1]
    files = str(second / "config.yaml")
    assert load_recipe().main(["-c", files, "-k", "trainer.max_steps=6", "--resume"]) == 0
    common = ["-c", files, "--from", str(second), "--tasks", "copy", "--allow-seen"]
    steps = ["adapt.max_steps=2", "adapt.eval_every=2"]
    for mode in ("router_only", "zero_shot"):
        out = ["--out", str(tmp_path / mode)]
        assert adapt.main([*common, *out, "-k", f"adapt.mode={mode}", *steps]) == 0
    refused(adapt.main, *common, "-k", "adapt.mode=average", *steps)


def test_attention_has_no_plain_weights(runs: tuple[Path, Path], tmp_path: Path, refused) -> None:
    exporting = "attention chooses skills by token"
    for name, more, told in (
        ("merge-task", [], "skills are mixed per token; use the run in aggregation.source"),
        ("export", [], exporting),
        ("export", ["--rank", "2"], exporting),
    ):
        given = [name, runs[1], "--average", "--out", tmp_path / "out", *more]
        assert told in refused(main, *given)
    assert not list(tmp_path.iterdir())
