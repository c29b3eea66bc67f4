"""The training command with each of its settings, on a gym of three tiny tasks."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.command import column, read_csv, train
from helpers.gyms import TASKS, write_config, write_gym
from helpers.tiny_run import answers, check_best_is_known, losses
from mttl.checkpoints.run_folder import RunFolder

UNSCORED = "data.evaluate=[]"


def test_another_seed_is_another_run(config: Path, whole: RunFolder) -> None:
    other = train(config, "other", "run.seed=14", UNSCORED, "trainer.max_steps=1")
    assert losses(other)[0] != losses(whole)[0]


def test_half_precision_stays_near_full_precision(config: Path) -> None:
    clip = ("trainer.gradient_clip_val=1.0", "trainer.max_steps=4", UNSCORED)
    full = train(config, "full", *clip)
    run = train(config, "half", *clip, "trainer.precision=bf16-mixed")
    # bfloat16 keeps 8 bits; a few steps do not let the rounding grow.
    assert losses(run) == pytest.approx(losses(full), rel=0.05)
    assert losses(run) != losses(full)


def test_gradient_checkpointing_changes_no_loss(config: Path, whole: RunFolder) -> None:
    run = train(config, "checkpointing", "backbone.gradient_checkpointing=true", UNSCORED)
    # The recomputed activations are bit-identical: same operations, same noise.
    assert losses(run) == losses(whole)


@pytest.mark.slow
def test_compilation_changes_no_loss_but_for_rounding(config: Path) -> None:
    # Dropout draws other numbers when compiled.
    still = ["backbone.config.dropout_rate=0.0", "trainer.max_steps=4", UNSCORED]
    plain = train(config, "plain", *still)
    compiled = train(config, "compiled", *still, "backbone.compile=true")
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)


def test_early_stopping_stops(config: Path) -> None:
    # Nothing is learned, so the second validation is no better than the first.
    run = train(
        config, "early", "optim.lr=1e-12", "optim.router_lr=1e-12", "trainer.early_stopping=1",
        "trainer.max_steps=100",
    )  # fmt: skip
    assert list(column(run.metrics, "val/score")) == [3, 7]
    assert torch.load(run.last, weights_only=False)["global_step"] == 8
    assert run.results.is_file()


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("bounds", "interval", "validated"),
    [
        ("max_steps=10", "4", [3, 7, 9]),
        ("max_steps=10", "null", [3, 7, 9]),
        ("max_steps=10", "0.5", [4, 9]),
        ("max_epochs=2", "null", [5, 11]),
    ],
)
def test_the_last_step_is_validated(bounds, interval, validated, config: Path, capsys) -> None:
    steps = [f"trainer.{bounds}", f"trainer.val_check_interval={interval}"]
    steps += ["trainer.max_steps=-1"] * bounds.startswith("max_epochs")
    run = train(config, f"{bounds}-{interval}", UNSCORED, *steps)
    assert list(column(run.metrics, "val/score")) == validated
    check_best_is_known(torch.load(run.last, weights_only=False), run)
    best = torch.load(run.best, weights_only=False)["global_step"]
    assert (
        f"Kept the weights of step {best}, the best of {len(validated)} val"
        in capsys.readouterr().out
    )


def test_without_validation_the_last_weights_are_saved(config: Path) -> None:
    never = ("data.split=train+dev", "data.validation=none", "data.evaluate=[test]")
    run = train(config, "unvalidated", *never)
    assert [path.name for path in run.checkpoints.iterdir()] == ["last.ckpt"]
    assert not column(run.metrics, "val/score")
    state = torch.load(run.last, weights_only=False)
    assert state["global_step"] == 12
    router = load_file(run.skills / "router.safetensors")
    assert torch.equal(router["logits"], state["state_dict"]["model.router.logits"])


def test_the_best_weights_are_the_ones_saved(config: Path) -> None:
    # Learning rates that destroy what was learned after the first validation.
    run = train(config, "best", "optim.schedule=constant", "optim.lr=3e-2")
    state = torch.load(run.best, weights_only=False)
    scores = column(run.metrics, "val/score")
    best = max(scores, key=lambda step: scores[step])
    assert state["global_step"] == best + 1
    router = load_file(run.skills / "router.safetensors")
    assert torch.equal(router["logits"], state["state_dict"]["model.router.logits"])
    dev = next(row for row in read_csv(run.results) if row["task"] == "mean")
    assert float(dev["score"]) == pytest.approx(scores[best], abs=1e-6)


def test_only_some_splits_and_samples_are_scored_when_asked(folder: Path) -> None:
    gym = write_gym(folder / "samples", samples=(100, 13))
    config = write_config(folder / "samples.yaml", gym)
    run = train(
        config, "samples", "data.samples=[100,13]", "data.evaluate=[dev]", "trainer.max_steps=1"
    )
    rows = read_csv(run.results)
    assert [(row["task"], row["sample"]) for row in rows] == [
        *((task, sample) for task in TASKS for sample in ("13", "100")),
        ("mean", "all"),
    ]
    assert {row["split"] for row in rows} == {"dev"}
    assert len(answers(run, "copy", "dev")) == 10
