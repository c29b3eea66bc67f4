"""Experiment loggers: what they log, and what happens where one fails."""

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from helpers.command import column, load_recipe, read_csv, train
from helpers.gyms import write_config, write_gym
from mttl.runtime.command import USER_MISTAKE, run_command
from mttl.training.loggers import MetricsFile, StepMonitor, TensorBoard, rates_and_norms
from mttl.training.monitors import CELL, GAP, routing_image

SHORT = ("trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.log_every_n_steps=2")
WANDB = (*SHORT, "trainer.loggers=[wandb]")
ROLES = ("skills", "router")


class FakeRun:
    """What is logged stays in lists."""

    offline = True

    def __init__(self, given: dict[str, Any], id: str) -> None:
        self.given, self.id = given, id
        self.config = given["config"]
        self.logged: list[dict[str, Any]] = []
        self.defined: list[tuple] = []
        self.exit_code: int | None = None
        self.fails_with: Exception | None = None
        folder = Path(given["dir"]) / "wandb"
        (folder / f"offline-run-2026010{len(list(folder.iterdir())) + 1}_000000-{id}").mkdir()

    def define_metric(self, *names: str, **options: Any) -> None:
        self.defined.append((*names, options))

    def log(self, values: dict[str, Any]) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        self.logged.append(values)

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code

    def column(self, name: str) -> dict[int, Any]:
        return {row["step"]: row[name] for row in self.logged if name in row}


def install(monkeypatch: Any, refusal: Exception | None = None) -> Any:
    """Put a module of W&B's interface where `import wandb` finds it; starting a run may fail."""
    module: Any = ModuleType("wandb")
    module.__spec__ = SimpleNamespace(name="wandb")
    module.runs = []

    def init(**given: Any) -> FakeRun:
        assert set(given) <= {"project", "name", "dir", "config", "settings", "id", "resume"}
        if refusal is not None:
            raise refusal
        module.runs.append(FakeRun(given, given.get("id", f"fake{len(module.runs)}")))
        return module.runs[-1]

    module.init = init
    module.Settings = lambda *, silent: SimpleNamespace(silent=silent)
    module.Image = lambda pixels: SimpleNamespace(pixels=pixels)
    module.Table = lambda *, columns, data: SimpleNamespace(columns=columns, data=data)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))


def refusal(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> str:
    given = ["-c", str(config), "-k", "run.name=refused", *overrides]
    assert run_command(lambda: load_recipe().main(given)) == USER_MISTAKE
    return " ".join(capsys.readouterr().err.split())


def test_tensorboard_shows_what_runs_are_compared_by(config: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(config, "board", *SHORT, "trainer.loggers=[tensorboard]")
    board = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    board.Reload()
    tags = board.Tags()

    def scalars(name: str) -> dict[int, float]:
        return {event.step: event.value for event in board.Scalars(name)}

    assert list(scalars("val/score")) == list(column(run.metrics, "val/score"))
    for role in ROLES:
        assert set(scalars(f"grad_norm/{role}")) == {2, 4}
        assert all(value > 0 for value in scalars(f"grad_norm/{role}").values())
        assert set(scalars(f"lr/{role}")) == {2, 4}
    assert scalars("lr/router")[2] > scalars("lr/skills")[2] > 0
    assert all(value > 0 for value in scalars("speed/tokens_per_second").values())
    assert {event.step for event in board.Images("routing")} == {0, 2, 4}
    (answers,) = [tag for tag in tags["tensors"] if tag.startswith("predictions/dev")]
    shown = board.Tensors(answers)[0].tensor_proto.string_val[0].decode()
    assert shown.startswith("| task | input | references | prediction |")
    assert "| <code>reverse</code> |" in shown
    final = {row["task"]: float(row["score"]) for row in read_csv(run.results)}
    assert scalars("dev/mean/mean")[4] == pytest.approx(final["mean"], abs=1e-6)
    settings = board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"skills.rank" in settings
    assert b"router.kind" in settings
    # The run's own file is the same with a logger and without.
    plain = train(config, "plain", *SHORT)
    assert plain.metrics.read_bytes() == run.metrics.read_bytes()


def test_a_resumed_logger_hides_what_was_lost(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resumed_step, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        board = TensorBoard(tmp_path, resumed_step)
        board.open({"run.seed": resumed_step})
        for step in steps:
            board.log_metrics({"loss": step + 10.0 * resumed_step}, step)
        board.close()
    events = accumulator.EventAccumulator(str(board.path))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found == {1: 1.0, 2: 2.0, 3: 23.0, 4: 24.0}


def test_wandb_shows_the_same_and_a_resumed_run_goes_on_there(config, monkeypatch) -> None:
    wandb = install(monkeypatch)
    run = train(config, "sent", *WANDB)
    (first,) = wandb.runs
    assert first.given["name"] == "sent"
    assert first.given["dir"] == str(run.path)
    assert first.given["config"]["skills.kind"] == "lora"
    assert first.defined == [("*", {"step_metric": "step"})]
    assert first.column("train/loss") == pytest.approx(column(run.metrics, "train/loss"))
    assert set(first.column("grad_norm/skills")) == set(first.column("lr/router")) == {2, 4}
    assert {image.pixels.dtype for image in first.column("routing").values()} == {np.dtype("u1")}
    table = first.column("predictions/dev")[4]
    assert table.columns == ["task", "input", "references", "prediction"]
    assert {row[0] for row in table.data} >= {"reverse", "copy"}
    assert first.exit_code == 0
    train(config, "sent", *WANDB, "trainer.max_steps=6", resume=True)
    second = wandb.runs[1]
    assert (second.given["id"], second.given["resume"]) == ("fake0", "allow")
    assert min(second.column("grad_norm/skills")) == 6


def test_a_logger_that_does_not_start_is_refused_and_leaves_nothing(config, monkeypatch, capsys):
    install(monkeypatch, RuntimeError("api_key not configured (no-tty)\ncall wandb.login()"))
    pytest.importorskip("tensorboard")  # which is opened first, and leaves nothing either
    message = refusal(capsys, config, *SHORT, "trainer.loggers=[tensorboard, wandb]")
    assert message.endswith(
        "error: trainer.loggers: Weights & Biases does not start (api_key not configured (no-tty) "
        "call wandb.login()). Log in with `wandb login`, or log offline with "
        "WANDB_MODE=offline, or remove 'wandb'"
    )
    assert not (config.parent / "runs" / "refused").exists()
    train(config, "refused", *SHORT)


def test_a_step_takes_as_long_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, float]] = []
    board = Mock(spec=TensorBoard)
    board.log_metrics = lambda numbers, step: shown.append(numbers)
    trainer, module = SimpleNamespace(loggers=[board], global_step=0), Mock()
    clock = iter(range(100))
    monkeypatch.setattr("mttl.training.loggers.time.monotonic", lambda: next(clock))
    optimizer = torch.optim.SGD([{"name": "skills", "params": [nn.Parameter(torch.ones(1))]}])
    monitor: Any = StepMonitor(10)
    trainer.global_step = 18
    monitor.on_train_start(trainer, module)
    for _ in range(12):
        monitor.on_before_optimizer_step(trainer, module, optimizer)
        trainer.global_step += 1
        monitor.on_train_batch_end(trainer, module, None, object(), 0)  # as of policies
    assert set(shown[0]) == {"lr/skills", "grad_norm/skills", "speed/seconds_per_step"}
    # The clock goes on by one when it is read: at the start, and at a record.
    assert [numbers["speed/seconds_per_step"] for numbers in shown] == [1 / 2, 1 / 10]


def test_a_library_that_is_missing_is_told(config, monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "missing libraries; install them with: pip install" in refusal(capsys, config, *WANDB)
    assert not (config.parent / "runs" / "refused").exists()


def test_a_logger_that_fails_later_is_told_once_and_the_run_goes_on(config, monkeypatch, caplog):
    wandb = install(monkeypatch)
    begin = wandb.init

    def failing(**given: object) -> object:
        run = begin(**given)
        run.fails_with = ConnectionError("the network is gone")
        return run

    monkeypatch.setattr(wandb, "init", failing)
    run = train(config, "alone", *WANDB)
    told = [row.message for row in caplog.records if "Weights & Biases failed" in row.message]
    assert told == ["Weights & Biases failed; the run continues without it: the network is gone"]
    assert run.results.is_file()


def test_the_norm_of_a_role_is_that_of_all_its_gradients() -> None:
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    groups = [("skills", a, 0.1), ("skills (no decay)", b, 0.1), ("router", c, 0.5)]
    optimizer = torch.optim.SGD([{"name": n, "params": [p], "lr": lr} for n, p, lr in groups])
    assert rates_and_norms(optimizer) == {
        "lr/skills": 0.1,
        "lr/router": 0.5,
        "grad_norm/skills": pytest.approx(math.hypot(3, 4)),
        "grad_norm/router": 0.0,
    }


def test_the_image_has_a_cell_for_every_weight() -> None:
    weights = np.zeros((2, 3, 4))
    weights[1, 2, 0] = 0.5
    pixels = routing_image(weights)
    assert pixels.shape == (3 * CELL, 2 * 4 * CELL + GAP, 3)
    dark = np.argwhere(pixels[..., 0] < 255)
    assert dark.min(axis=0).tolist() == [2 * CELL, 4 * CELL + GAP]
    assert dark.max(axis=0).tolist() == [3 * CELL - 1, 5 * CELL + GAP - 1]
    assert (routing_image(weights * 0) == 255).all()


def test_a_row_per_step_with_what_was_logged_at_it(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.log_metrics({"train/loss": 0.1}, 0)
    file.log_metrics({"train/loss": 1e-7, "lr": 0.5}, 10)
    file.log_metrics({"a,b": 2.0}, 10)
    file.log_metrics({"train/loss": float("nan")}, 5)  # late, but in its place
    file.save()
    expected = 'step,"a,b",lr,train/loss\n0,,,0.1\n5,,,nan\n10,2.0,0.5,1e-07\n'
    assert file.path.read_text() == expected


def test_a_resumed_run_keeps_what_came_before_and_drops_what_comes_again(tmp_path: Path) -> None:
    earlier = tmp_path / "run" / "metrics.csv"
    file = MetricsFile(earlier)
    file.log_metrics({"train/loss": 2.5}, 0)
    file.log_metrics({"train/loss": 2.25, "val/score": 0.5}, 4)
    file.log_metrics({"train/loss": 2.0, "late": 1.0}, 8)
    file.save()
    before = earlier.read_bytes()
    MetricsFile(earlier, keep_until=8).finalize("success")
    assert earlier.read_bytes() == before
    file = MetricsFile(earlier, keep_until=4)
    file.log_metrics({"train/loss": 1.5, "val/loss": 3.0}, 8)
    file.log_metrics({"val/loss": 4.0}, 4)
    file.save()
    assert column(earlier, "train/loss") == {0: 2.5, 4: 2.25, 8: 1.5}
    assert column(earlier, "val/score") == {4: 0.5}
    assert column(earlier, "val/loss") == {4: 4.0, 8: 3.0}
    assert "late" not in earlier.read_text()
    file = MetricsFile(earlier)  # of a new run
    file.log_metrics({"train/loss": 9.0}, 2)
    file.save()
    file.log_metrics({"val/score": 0.25}, 3)  # a later column
    file.finalize("success")
    assert earlier.read_text() == "step,train/loss,val/score\n2,9.0,\n3,,0.25\n"
