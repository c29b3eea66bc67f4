"""The training command as a whole, on a gym of three tiny tasks."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from safetensors.torch import load_file

from helpers.command import ROOT, column, load_recipe, read_csv, start, train
from helpers.gyms import TASKS, TINY_LLAMA, TINY_T5, write_config, write_gym
from mttl import yaml12
from mttl.build.model import load_run
from mttl.config.load import dump_config, load_config
from mttl.errors import CheckpointError, ConfigError, TrainingError
from mttl.files import locked
from mttl.gym.partition import load_partition
from mttl.models.backbone import build_random
from mttl.text import train_tasks
from mttl.training.run_folder import RunFolder
from mttl.training.stopping import StopRequested

TAB = "\t"
RESULT_COLUMNS = ["task", "split", "sample", "seed", "metric", "score", "n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def gym(folder: Path) -> Path:
    return write_gym(folder / "gym")


@pytest.fixture(scope="module")
def config(folder: Path, gym: Path) -> Path:
    return write_config(folder / "tiny.yaml", gym)


@pytest.fixture(scope="module")
def whole(config: Path) -> RunFolder:
    """An uninterrupted run: relaxed sampling, dropout, two epochs, three validations."""
    return train(config, "whole")


def losses(run: RunFolder) -> list[float]:
    return list(column(run.metrics, "train/loss").values())


def answers(run: RunFolder, task: str, split: str) -> list[dict[str, Any]]:
    text = (run.predictions / f"{task}_{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# The run folder: what other programs read.


def test_leaves_every_file_of_the_contract_and_nothing_else(whole: RunFolder) -> None:
    found = {str(path.relative_to(whole.path)) for path in whole.path.rglob("*") if path.is_file()}
    assert found == {
        *("config.yaml", "metrics.csv", "results.csv", "baselines.csv"),
        *("checkpoints/last.ckpt", "checkpoints/best.ckpt"),
        *(f"predictions/{task}_{split}.jsonl" for task in TASKS for split in ("dev", "test")),
        *("skills/skills.safetensors", "skills/router.safetensors", "skills/tasks.json"),
        *("skills/meta.json", "skills/backbone.safetensors"),
        *("plots/routing.npz", "plots/routing_history.npz", ".lock"),
    }


def test_results_have_a_row_per_task_and_split_and_their_mean(whole: RunFolder) -> None:
    rows = read_csv(whole.results)
    assert list(rows[0]) == RESULT_COLUMNS
    assert [(row["task"], row["split"]) for row in rows] == [
        (task, split) for split in ("dev", "test") for task in (*TASKS, "mean")
    ]
    for split, size in (("dev", 5), ("test", 3)):
        *tasks, mean = [row for row in rows if row["split"] == split]
        assert [row["metric"] for row in tasks] == [metric for metric, _ in TASKS.values()]
        assert {row["sample"] for row in tasks} == {"100"}
        assert {row["n"] for row in tasks} == {str(size)}
        scores = [float(row["score"]) for row in tasks]
        # An undefined correlation is written as such, and counts as 0 in the mean.
        expected = sum(0.0 if math.isnan(score) else score for score in scores) / 3
        assert float(mean["score"]) == pytest.approx(expected, abs=1e-6)
        assert mean["n"] == str(3 * size)
    assert {row["seed"] for row in rows} == {"13"}


def test_baselines_stand_beside_the_results(whole: RunFolder) -> None:
    rows = read_csv(whole.baselines)
    assert list(rows[0]) == ["baseline", *RESULT_COLUMNS]
    copied = {
        row["task"]: float(row["score"])
        for row in rows
        if (row["baseline"], row["split"]) == ("copy", "test")
    }
    assert copied["copy"] == 1.0


def test_predictions_are_in_the_order_of_the_files(whole: RunFolder, gym: Path) -> None:
    for task in TASKS:
        for split in ("dev", "test"):
            lines = (gym / task / f"{task}_16_100_{split}.tsv").read_text().splitlines()
            rows = answers(whole, task, split)
            assert [(row["input"], row["references"]) for row in rows] == [
                (f"[{task}] {line.split(TAB)[0]}", line.split(TAB)[1:]) for line in lines
            ]
            assert {row["sample"] for row in rows} == {100}


def test_metrics_hold_losses_scores_and_routing(whole: RunFolder) -> None:
    assert list(column(whole.metrics, "train/loss")) == list(range(12))
    for name in ("val/score", "val/loss", "val/copy/score", "val/number/loss"):
        assert list(column(whole.metrics, name)) == [3, 7, 11], name
    for name in ("routing/discreteness", "routing/encoder/sparsity", "routing/decoder/usage"):
        assert list(column(whole.metrics, name)) == [0, 4, 8, 12], name


def test_skills_folder_describes_itself(whole: RunFolder) -> None:
    assert json.loads((whole.skills / "tasks.json").read_text()) == list(TASKS)
    meta = json.loads((whole.skills / "meta.json").read_text())
    assert meta["format_version"] == 1
    assert meta["backbone"]["name"] == "random t5"
    assert meta["backbone"]["trained"]
    assert set(meta["libraries"]) == {"mttl", "torch", "transformers", "pytorch-lightning"}


def test_routing_arrays_fit_the_saved_router(whole: RunFolder) -> None:
    arrays = np.load(whole.plots / "routing.npz")
    assert set(arrays) == {"weights", "probabilities", "tasks", "groups"}
    assert arrays["tasks"].tolist() == list(TASKS)
    groups = arrays["groups"].tolist()
    assert arrays["weights"].shape == (len(groups), 3, 3)
    np.testing.assert_allclose(arrays["weights"].sum(-1), 1, rtol=1e-6)
    logits = load_file(whole.skills / "router.safetensors")["logits"][:, :, 0]
    expected = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    np.testing.assert_allclose(arrays["weights"], expected, rtol=1e-5)
    np.testing.assert_allclose(arrays["probabilities"], logits.sigmoid(), rtol=1e-5)
    history = np.load(whole.plots / "routing_history.npz")
    assert history["steps"].tolist() == [0, 4, 8, 12]
    assert history["weights"].shape == (4, len(groups), 3, 3)
    assert history["groups"].tolist() == groups


def test_resolved_configuration_repeats_the_run(whole: RunFolder, folder: Path) -> None:
    saved = yaml12.parse(whole.config.read_text())
    assert saved["run"] == {"name": "whole", "dir": str(folder / "runs"), "seed": 13}
    assert saved["optim"]["betas"] == [0.9, 0.999]
    assert dump_config(load_config([str(whole.config)])) == whole.config.read_text()


def test_prints_every_task_beside_the_baselines(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = train(config, "printed", "trainer.max_steps=1", "trainer.val_check_interval=1")
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if "major" in line)
    assert header.replace("┃", " ").split() == (
        ["task", "metric", *("dev", "copy", "major"), *("test", "copy", "major")]
    )
    rows = read_csv(run.results)
    for task in (*TASKS, "mean"):
        scores = [float(row["score"]) for row in rows if row["task"] == task]
        cells = next(
            line.replace("│", " ").split()
            for line in printed.splitlines()
            if line.startswith(f"│ {task} ")
        )
        numbers = cells[1:] if task == "mean" else cells[2:]
        assert [numbers[0], numbers[3]] == [f"{100 * score:.1f}" for score in scores]
    assert f"The run is in {run.path}" in printed.replace("\n", "")
    assert "SelfAttention.q" in printed


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("whole", []),
        ("frozen", ["backbone.train=false", "backbone.config.initializer_factor=3.0"]),
        ("beams", ["generation.num_beams=3", "generation.length_penalty=0.5"]),
        ("heads", ["skills.n_heads=2", "router.granularity=block"]),
        ("shared", ["skills.n_skills=1", "router.kind=shared"]),
    ],
)
def test_a_loaded_run_gives_the_same_answers(
    config: Path, whole: RunFolder, name: str, overrides: list[str]
) -> None:
    run = whole if name == "whole" else train(config, name, *overrides)
    generation = yaml12.parse(run.config.read_text())["generation"]
    check_answers(run, **(generation if generation["num_beams"] > 1 else {}))


def test_a_decoder_only_model_trains_and_loads(folder: Path, gym: Path) -> None:
    config = write_config(folder / "llama.yaml", gym, backbone={**TINY_LLAMA, "tokenizer": "byte"})
    run = train(config, "llama")
    curve = losses(run)
    assert curve[-1] < curve[0]
    check_answers(run, left=True)


def check_answers(run: RunFolder, left: bool = False, **generation: Any) -> None:
    """Generate once more with the loaded inventory, with no help of the data room."""
    built = load_run(run.path)
    model, tokenizer = built.model, built.tokenizer
    tokenizer.padding_side = "left" if left else "right"
    found, expected = [], []
    for task in TASKS:
        rows = [row for split in ("dev", "test") for row in answers(run, task, split)]
        texts = [row["input"] + ("\n" if left else "") for row in rows]
        inputs = tokenizer(texts, padding=True, add_special_tokens=not left, return_tensors="pt")
        ids = model.generate(
            built.task_ids([task] * len(rows)),
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=6,
            **generation,
        )
        ids = ids[:, inputs.input_ids.shape[1] :] if left else ids
        found += [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
        expected += [row["prediction"] for row in rows]
    assert found == expected
    assert len(set(expected)) > 1  # otherwise any broken model would do


# Options of a run.


def test_the_seed_decides_everything(config: Path, whole: RunFolder) -> None:
    again = train(config, "again")
    assert again.metrics.read_text() == whole.metrics.read_text()
    assert again.results.read_text() == whole.results.read_text()
    other = train(config, "other", "run.seed=14")
    assert losses(other) != losses(whole)


@pytest.mark.parametrize(
    "sampler",
    [
        "{kind: uniform}",
        "{kind: temperature, temperature: 3.0}",
        "{kind: homogeneous}",
    ],
)
def test_every_sampler_trains(config: Path, whole: RunFolder, sampler: str) -> None:
    run = train(config, sampler.split()[1].strip(",}"), f"data.sampler={sampler}")
    assert len(losses(run)) == 12
    assert losses(run) != losses(whole)


def test_label_smoothing_raises_the_loss_of_the_first_step(config: Path, whole: RunFolder) -> None:
    run = train(config, "smooth", "optim.label_smoothing=0.2")
    assert losses(run)[0] != pytest.approx(losses(whole)[0], rel=1e-4)
    assert all(math.isfinite(loss) for loss in losses(run))


def test_accumulation_takes_several_batches_per_step(config: Path, whole: RunFolder) -> None:
    run = train(
        config, "accumulated", "trainer.accumulate_grad_batches=2", "trainer.max_steps=6",
        "optim.schedule=constant", "optim.warmup=0",
    )  # fmt: skip
    state = torch.load(run.last, weights_only=False)
    assert state["global_step"] == 6
    assert len(losses(run)) == 6
    assert state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] == 12


def test_half_precision_stays_near_full_precision(config: Path) -> None:
    clip = "trainer.gradient_clip_val=1.0"
    full = train(config, "full", clip)
    run = train(config, "half", clip, "trainer.precision=bf16-mixed")
    # bfloat16 keeps 8 bits; a few steps do not let the rounding grow.
    assert losses(run) == pytest.approx(losses(full), rel=0.05)
    assert losses(run) != losses(full)


def test_gradient_checkpointing_changes_no_loss(config: Path, whole: RunFolder) -> None:
    run = train(config, "checkpointing", "backbone.gradient_checkpointing=true")
    # The recomputed activations are bit-identical: same operations, same noise.
    assert losses(run) == losses(whole)


@pytest.mark.slow
def test_compilation_changes_no_loss_but_for_rounding(config: Path) -> None:
    # Dropout draws other numbers when compiled.
    still = ["backbone.config.dropout_rate=0.0", "trainer.max_steps=4"]
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


def test_validates_by_epoch_where_no_interval_is_given(config: Path) -> None:
    run = train(config, "epochs", "trainer.val_check_interval=null", "trainer.early_stopping=9")
    assert list(column(run.metrics, "val/score")) == [5, 11]
    state = torch.load(run.last, weights_only=False)
    check_best_is_known(state, run)


def test_tensorboard_is_written_when_asked_for(config: Path) -> None:
    pytest.importorskip("tensorboard")
    run = train(config, "board", "trainer.loggers=[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = (run.path / "tensorboard").glob("events*")
    board = EventAccumulator(str(events))
    board.Reload()
    found = [event.value for event in board.Scalars("train/loss")]
    assert found == pytest.approx(losses(run), rel=1e-6)
    assert "val/copy/score" in board.Tags()["scalars"]


def test_without_validation_the_last_weights_are_saved(config: Path) -> None:
    run = train(config, "unvalidated", "data.split=train+dev", "data.validation=none")
    assert [path.name for path in run.checkpoints.iterdir()] == ["last.ckpt"]
    assert not column(run.metrics, "val/score")
    state = torch.load(run.last, weights_only=False)
    assert state["global_step"] == 12
    router = load_file(run.skills / "router.safetensors")
    torch.testing.assert_close(router["logits"], state["state_dict"]["model.router.logits"])


def test_a_run_too_short_to_validate_keeps_its_last_weights(config: Path) -> None:
    run = train(config, "short", "trainer.max_steps=3")
    assert not run.best.exists()
    state = torch.load(run.last, weights_only=False)
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


def test_time_alone_is_no_bound_for_a_schedule(config: Path) -> None:
    with pytest.raises(ConfigError, match="also beside max_time"):
        train(config, "timed", "trainer.max_steps=-1", "trainer.max_time=00:00:00:05")
    assert not (config.parent / "runs" / "timed").exists()


# Stopping and resuming.


class SignalAt(Callback):
    """Sends this process a signal in the middle of a step, or of a validation."""

    def __init__(self, step: int, number: signal.Signals, validating: bool = False) -> None:
        self.step, self.number, self.validating = step, number, validating

    def on_before_optimizer_step(self, trainer: Trainer, *args: Any) -> None:
        if not self.validating and trainer.global_step == self.step:
            signal.raise_signal(self.number)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if self.validating and trainer.global_step == self.step:
            self.validating = False
            signal.raise_signal(self.number)


@pytest.fixture
def interrupt(config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StopRequested]:
    """Return a function that runs the command until a signal arrives."""

    def run(name: str, callback: Callback, *overrides: str) -> StopRequested:
        recipe, build = load_recipe(), train_tasks.build_trainer

        def with_callback(*args: Any, **kwargs: Any) -> Trainer:
            trainer = build(*args, **kwargs)
            trainer.callbacks.insert(0, callback)  # type: ignore[attr-defined]
            return trainer

        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with monkeypatch.context() as once:
            once.setattr(train_tasks, "build_trainer", with_callback)
            with pytest.raises(StopRequested) as caught:
                recipe.main(["-c", str(config), "-k", f"run.name={name}", *overrides])
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        return caught.value

    return run


def check_same_run(resumed: RunFolder, whole: RunFolder) -> None:
    """Nothing distinguishes a resumed run: bit-identical, as its noise continues too."""
    assert resumed.metrics.read_text() == whole.metrics.read_text()
    assert resumed.results.read_text() == whole.results.read_text()
    for name in ("skills", "router", "backbone"):
        first = load_file(resumed.skills / f"{name}.safetensors")
        second = load_file(whole.skills / f"{name}.safetensors")
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.equal(value, second[key]), key
    ours, theirs = (np.load(run.plots / "routing_history.npz") for run in (resumed, whole))
    assert ours["steps"].tolist() == theirs["steps"].tolist()
    np.testing.assert_array_equal(ours["weights"], theirs["weights"])
    first, second = (torch.load(run.last, weights_only=False) for run in (resumed, whole))
    assert first["global_step"] == second["global_step"]
    for key, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][key]), key


def check_best_is_known(state: dict[str, Any], run: RunFolder) -> None:
    """The state to resume from knows the best score so far, or a worse one could replace it."""
    (best,) = (value for key, value in state["callbacks"].items() if "ModelCheckpoint" in key)
    scores = column(run.metrics, "val/score")
    assert float(best["best_model_score"]) == pytest.approx(max(scores.values()))


@pytest.mark.parametrize(
    ("step", "validating"),
    [(1, False), (3, False), (5, False), (6, False), (8, True), (12, True), (11, False)],
    ids=[
        *("first epoch", "step before a validation", "end of an epoch", "second epoch"),
        *("validation", "last validation", "last step"),
    ],
)
def test_a_run_continues_as_if_it_had_never_stopped(
    config: Path, whole: RunFolder, interrupt: Callable[..., StopRequested], step: int,
    validating: bool,
) -> None:  # fmt: skip
    name = f"stopped-{step}-{validating}"
    stop = interrupt(name, SignalAt(step, signal.SIGINT, validating))
    assert str(stop) == "stopped by SIGINT; the state was saved, continue with --resume"
    assert stop.number == signal.SIGINT
    run = RunFolder(whole.path.parent / name)
    assert not run.results.exists()
    saved = torch.load(run.last, weights_only=False)
    assert saved["global_step"] == (step if validating else step + 1)
    if validating:
        check_best_is_known(saved, run)
    check_same_run(train(config, name, resume=True), whole)


def test_a_second_signal_stops_at_once(
    interrupt: Callable[..., StopRequested], whole: RunFolder
) -> None:
    class Twice(Callback):
        def on_before_optimizer_step(self, *args: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    stop = interrupt("twice", Twice())
    assert str(stop) == "stopped by SIGINT; no state had been saved yet"
    assert not RunFolder(whole.path.parent / "twice").last.exists()


def test_a_signal_while_answering_stops_at_once_and_scoring_can_be_repeated(
    config: Path, interrupt: Callable[..., StopRequested], whole: RunFolder
) -> None:
    class WhileAnswering(Callback):
        def on_test_batch_start(self, *args: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    stop = interrupt("answering", WhileAnswering())
    assert stop.number == signal.SIGTERM
    assert "the state was saved" in str(stop)
    check_same_run(train(config, "answering", resume=True), whole)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(
    config: Path, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Diverge(Callback):
        def on_before_backward(self, trainer: Trainer, module: Any, loss: torch.Tensor) -> None:
            if trainer.global_step == 5:
                for value in module.parameters():
                    value.data.fill_(float("nan"))

    recipe, build = load_recipe(), train_tasks.build_trainer

    def diverging(*args: Any, **kwargs: Any) -> Trainer:
        trainer = build(*args, **kwargs)
        trainer.callbacks.insert(0, Diverge())  # type: ignore[attr-defined]
        return trainer

    monkeypatch.setattr(train_tasks, "build_trainer", diverging)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 7: the weights are useless"):
        recipe.main(["-c", str(config), "-k", "run.name=nan"])
    run = RunFolder(whole.path.parent / "nan")
    assert torch.load(run.last, weights_only=False)["global_step"] == 4
    assert not run.skills.exists()


def test_two_processes_do_not_train_into_one_folder(
    config: Path, interrupt: Callable[..., StopRequested], whole: RunFolder
) -> None:
    interrupt("taken", SignalAt(1, signal.SIGINT))
    with (
        locked(whole.path.parent / "taken" / ".lock"),
        pytest.raises(ConfigError, match=r"another process trains in '.*taken': wait for it"),
    ):
        train(config, "taken", resume=True)
    assert train(config, "taken", resume=True).results.is_file()


def test_a_moved_run_is_resumed_with_its_best_weights(
    config: Path, interrupt: Callable[..., StopRequested], whole: RunFolder
) -> None:
    interrupt("here", SignalAt(9, signal.SIGINT))
    (whole.path.parent / "here").rename(whole.path.parent / "there")
    text = (whole.path.parent / "there" / "config.yaml").read_text()
    (whole.path.parent / "there" / "config.yaml").write_text(text.replace("here", "there"))
    check_same_run(train(config, "there", resume=True), whole)


def test_a_finished_run_can_be_resumed_with_more_steps(config: Path, whole: RunFolder) -> None:
    constant = ["optim.schedule=constant", "optim.warmup=0"]
    long = train(config, "long", *constant)
    train(config, "longer", *constant, "trainer.max_steps=8")
    longer = train(config, "longer", *constant, resume=True)
    assert losses(longer) == losses(long)
    assert longer.results.read_text() == long.results.read_text()


def test_frozen_weights_are_not_in_the_checkpoints(config: Path) -> None:
    run = train(config, "thin", "backbone.train=false")
    for path in (run.last, run.best):
        names = torch.load(path, weights_only=False)["state_dict"]
        assert all(".inventory." in name or "router" in name for name in names)


def test_a_frozen_backbone_from_a_folder_is_not_saved_but_recognised(
    config: Path, folder: Path
) -> None:
    # Larger weights than usual, so that a random model says more than one thing.
    settings = {**TINY_T5["config"], "initializer_factor": 3.0}
    build_random("t5", settings).save_pretrained(folder / "t5")
    pretrained = folder / "pretrained.yaml"
    pretrained.write_text(
        f"backbone: {{kind: pretrained, name: '{folder / 't5'}', tokenizer: byte}}"
    )
    run = train(f"{config}+{pretrained}", "pretrained")
    assert not (run.skills / "backbone.safetensors").exists()
    assert not json.loads((run.skills / "meta.json").read_text())["backbone"]["trained"]
    check_answers(run)
    (folder / "t5").rename(folder / "moved")
    with pytest.raises(ConfigError, match=r"backbone\.name"):
        load_run(run.path)
    load_run(run.path, backbone=folder / "moved")
    build_random("t5", settings).save_pretrained(folder / "t5")
    with pytest.raises(CheckpointError, match="Its weights must be the same ones"):
        load_run(run.path)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="SIGINT", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, id="SIGTERM"),
    ],
)
def test_a_signal_to_the_process_gives_its_exit_status(
    config: Path, number: signal.Signals, status: int
) -> None:
    name = f"process-{number.name}"
    process = start(config, name, "trainer.max_steps=100000", "trainer.val_check_interval=10")
    assert process.stderr is not None
    # The first line of a validation says that training is under way.
    read = []
    for line in process.stderr:
        read.append(line)
        if "mean score" in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=250)
    assert process.returncode == status, "".join(read) + rest
    assert "stopping after this step, with a checkpoint" in rest
    assert f"stopped by {number.name}; the state was saved, continue with --resume" in rest
    assert "Traceback" not in rest
    saved = torch.load(
        config.parent / "runs" / name / "checkpoints" / "last.ckpt", weights_only=False
    )
    assert saved["global_step"] >= 10


# What a user sees.


def test_prints_nothing_that_a_user_can_do_nothing_about(config: Path, gym: Path) -> None:
    process = start(config, "clean", "data.cache_dir=" + str(config.parent / "fresh"))
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    lines = [line.strip() for line in errors.splitlines()]
    assert lines == [
        *("tokenising 48 rows of 3 files", "tokenising 15 rows of 3 files"),
        *(line for line in lines if line.startswith("step ")),
        "tokenising 9 rows of 3 files",
    ]
    assert [line.split(":")[0] for line in lines if "mean score" in line] == [
        *("step 4", "step 8", "step 12"),
    ]


# Learning.


def test_learns_two_groups_of_tasks_jointly(folder: Path) -> None:
    """Two tasks double a letter, two shift all: copying and guessing score next to nothing."""
    letters = "abcdef"
    shift = str.maketrans(letters, "bcdefa")
    tasks: dict[str, tuple[str, Callable[[str], str]]] = {
        "double_1": ("EM", lambda word: word[0] * 2 + word[-1]),
        "double_2": ("EM", lambda word: word[0] * 2 + word[-1]),
        "shift_1": ("ACC", lambda word: word.translate(shift)),
        "shift_2": ("ACC", lambda word: word.translate(shift)),
    }
    learner = {
        **{"vocab_size": 384, "d_model": 48, "d_kv": 12, "num_heads": 4, "d_ff": 96},
        **{"num_layers": 1, "num_decoder_layers": 1, "dropout_rate": 0.0},
        "feed_forward_proj": "gated-gelu",
    }
    config = write_config(
        folder / "groups.yaml",
        write_gym(folder / "groups", tasks, sizes=(256, 32, 32), letters=letters, lengths=(2, 3)),
        data={"batch_size": 32, "eval_batch_size": 128},
        backbone={"config": learner},
        skills={"n_skills": 2, "rank": 4, "targets": ["attention", "mlp"]},
        optim={"lr": 4e-3, "router_lr": 4e-2, "betas": [0.9, 0.98]},
        trainer={"max_steps": 300, "val_check_interval": 300, "log_every_n_steps": 25},
    )
    run = train(config, "groups")
    (score,) = column(run.metrics, "val/score").values()
    floor = max(
        float(row["score"])
        for row in read_csv(run.baselines)
        if (row["task"], row["split"]) == ("mean", "dev")
    )
    assert floor < 0.2
    assert score > 0.4


# The real tasks.


@pytest.mark.slow
def test_trains_on_the_real_crossfit_tasks(tmp_path: Path) -> None:
    shared = Path(os.environ.get("MTTL_SHARED", ROOT.parent / "shared"))
    if not (shared / "crossfit").is_dir():
        pytest.skip(f"no CrossFit tasks at '{shared / 'crossfit'}'; set MTTL_SHARED to the folder")
    recipe = load_recipe()
    status = recipe.main(
        [
            *(
                "-c",
                "crossfit.yaml+backbone/tiny_t5.yaml+data/crossfit_tasks.yaml",
                "-k",
                "run.name=real",
            ),
            *(f"run.dir={tmp_path}", f"data.dir={shared / 'crossfit'}", "data.max_rows=8"),
            *("data.batch_size=16", "data.max_input_length=96", "data.max_output_length=8"),
            *("backbone.config.d_model=32", "backbone.config.d_ff=64", "backbone.config.d_kv=8"),
            *("trainer.max_steps=6", "trainer.val_check_interval=6", "trainer.accelerator=cpu"),
        ]
    )
    assert status == 0
    run = RunFolder(tmp_path / "real")
    tasks = json.loads((run.skills / "tasks.json").read_text())
    assert len(tasks) == 83
    partition = load_partition(ROOT / "configs" / "partitions" / "random.json")
    assert set(tasks) <= set(partition.train)
    rows = read_csv(run.results)
    for split in ("dev", "test"):
        assert {row["task"] for row in rows if row["split"] == split} == {*tasks, "mean"}
        for task in tasks:
            assert (run.predictions / f"{task}_{split}.jsonl").is_file()
