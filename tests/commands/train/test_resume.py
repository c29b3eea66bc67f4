"""The training command stopped and resumed, on a gym of three tiny tasks."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback

from helpers.command import start, train
from helpers.gyms import TINY_T5
from helpers.interruption import SignalAt, assert_same_run, called_back
from helpers.tiny_run import check_answers, check_best_is_known, losses
from mttl.assembly.model import load_run
from mttl.checkpoints.run_folder import RunFolder
from mttl.io.errors import CheckpointError, ConfigError, TrainingError
from mttl.io.files import locked
from mttl.models.backbone import build_random
from mttl.training.callbacks import StopRequested

BUILDER = "mttl.commands.train_tasks.build_trainer"


@pytest.fixture
def interrupt(config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StopRequested]:
    """Return a function that runs the command until a signal arrives."""

    def run(name: str, callback: Callback, *overrides: str) -> StopRequested:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with called_back(callback, monkeypatch, BUILDER), pytest.raises(StopRequested) as caught:
            train(config, name, *overrides)
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        return caught.value

    return run


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("step", "validating"),
    [
        pytest.param(5, False, id="end of an epoch"),
        pytest.param(8, True, id="validation"),
        pytest.param(11, False, id="last step"),
        *(
            pytest.param(step, validating, marks=pytest.mark.slow)
            for step, validating in ((1, False), (3, False), (6, False), (12, True))
        ),
    ],
)
def test_a_run_continues_as_if_it_had_never_stopped(config, whole, interrupt, step, validating):
    name = f"stopped-{step}-{validating}"
    stop = interrupt(name, SignalAt(step, signal.SIGINT, validating))
    assert str(stop) == "stopped by SIGINT; the state was saved; continue with --resume"
    assert stop.number == signal.SIGINT
    run = RunFolder(whole.path.parent / name)
    assert not run.results.exists()
    saved = torch.load(run.last, weights_only=False)
    assert saved["global_step"] == (step if validating else step + 1)
    if validating:
        check_best_is_known(saved, run)
    assert_same_run(train(config, name, resume=True), whole)


@pytest.mark.slow
def test_a_run_of_double_precision_continues_bit_for_bit(config, interrupt) -> None:
    double = "trainer.precision=64-true"
    interrupt("stopped-double", SignalAt(3), double)
    assert_same_run(
        train(config, "stopped-double", double, resume=True), train(config, "double", double)
    )


def test_a_signal_while_answering_stops_at_once_and_scoring_can_be_repeated(
    config, interrupt, whole
) -> None:
    class WhileAnswering(Callback):
        def on_test_batch_start(self, *args: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    stop = interrupt("answering", WhileAnswering())
    assert stop.number == signal.SIGTERM
    assert "the state was saved" in str(stop)
    assert_same_run(train(config, "answering", resume=True), whole)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(
    config, whole, monkeypatch
) -> None:
    class Diverge(Callback):
        def on_before_backward(self, trainer: Trainer, module: Any, loss: torch.Tensor) -> None:
            if trainer.global_step == 5:
                for value in module.parameters():
                    value.data.fill_(float("nan"))

    useless = r"the loss is nan at step 7: training has diverged"
    with called_back(Diverge(), monkeypatch, BUILDER), pytest.raises(TrainingError, match=useless):
        train(config, "nan")
    run = RunFolder(whole.path.parent / "nan")
    assert torch.load(run.last, weights_only=False)["global_step"] == 4
    assert not run.skills.exists()


@pytest.mark.slow
def test_a_moved_run_is_resumed_by_one_process_with_its_best_weights(config, interrupt, whole):
    interrupt("here", SignalAt(3, signal.SIGINT))  # before a validation
    moved = (whole.path.parent / "here").rename(whole.path.parent / "there")
    text = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(text.replace("name: here", "name: there"))
    taken = r"another process trains in '.*there'; wait for it"
    with locked(moved / ".lock"), pytest.raises(ConfigError, match=taken):
        train(config, "there", resume=True)
    assert_same_run(train(config, "there", resume=True), whole)


@pytest.mark.slow
def test_a_finished_run_can_be_resumed_with_more_steps(config: Path, whole: RunFolder) -> None:
    constant = ["optim.schedule=constant", "optim.warmup=0"]
    long = train(config, "long", *constant)
    train(config, "longer", *constant, "trainer.max_steps=7")
    longer = train(config, "longer", *constant, resume=True)
    assert losses(longer) == losses(long)
    assert longer.results.read_text() == long.results.read_text()


def test_a_frozen_backbone_from_a_folder_is_not_saved_but_recognised(config, folder) -> None:
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
    with pytest.raises(CheckpointError, match="' was trained on the backbone '"):
        load_run(run.path)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_signal_to_the_process_gives_its_exit_status(config, number, status) -> None:
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
    assert "stopping after this step with a checkpoint" in rest
    assert f"stopped by {number.name}; the state was saved; continue with --resume" in rest
    assert "Traceback" not in rest
    saved = torch.load(
        config.parent / "runs" / name / "checkpoints" / "last.ckpt", weights_only=False
    )
    assert saved["global_step"] >= 10
