"""The progress of a run on a clock that the tests set."""

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from mttl.training.progress import TrainingProgress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Run:
    """The trainer of a run of 100 steps, which counts how often its loss is read, and the bar."""

    estimated_stepping_batches = 100
    num_val_batches, num_test_batches = (3,), (4,)
    global_step = losses_read = 0
    seconds = 1000.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.seconds)
        monkeypatch.setattr("mttl.runtime.progress_bar.time", clock)
        self.file = StringIO()
        self.bar = TrainingProgress(Console(file=self.file, force_terminal=terminal, width=100))
        self.callback_metrics: dict[str, Any] = {}

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        self.losses_read += 1
        return {"train/loss": torch.tensor(1.2346)}

    def call(self, hook: str, *arguments: Any) -> None:
        getattr(self.bar, hook)(self, self, *arguments)

    def train_to(self, step: int, seconds: float) -> None:
        """End a batch at a step, at a time after the beginning."""
        self.global_step, self.seconds = step, 1000.0 + seconds
        self.call("on_train_batch_end", None, None, 0)

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_a_line_from_time_to_time_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.call("on_train_start")
    run.train_to(1, 0.5)
    run.train_to(29, 14.9)
    assert run.lines() == []
    run.train_to(30, 15.1)
    run.train_to(31, 16.0)
    run.train_to(80, 40.0)
    # 15.1 s for 30 steps leave 70 · 15.1 / 30 s, and 40 s for 80 leave 10.
    assert run.lines() == [
        "training: 30 of 100, loss 1.235, about 35 s left",
        "training: 80 of 100, loss 1.235, about 10 s left",
    ]
    assert run.losses_read == 2  # each time waits for an accelerator


def test_a_validation_says_what_came_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.call("on_train_start")
    run.global_step = 40
    run.call("on_validation_start")
    run.call("on_validation_batch_end")
    run.call("on_validation_end")  # nothing was scored
    run.callback_metrics["val/score"] = torch.tensor(0.45678)
    run.call("on_validation_end")
    assert run.lines() == ["step 40: mean score 45.7 % on development rows"]


def test_answers_are_counted_from_the_start_of_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    for _ in range(2):
        run.call("on_test_start")
        for _ in range(4):
            run.seconds += 10
            run.call("on_test_batch_end")
        run.call("on_test_end")
    said = ["answering batches: 2 of 4, about 20 s left", "answering batches: 4 of 4"]
    assert run.lines() == said * 2


def test_other_processes_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (False, True):
        run = Run(monkeypatch, terminal=terminal)
        run.bar.disable()
        run.callback_metrics["val/score"] = 1.0
        run.call("on_train_start")
        run.train_to(50, 60.0)
        for hook in ("start", "batch_end", "end"):
            run.call(f"on_validation_{hook}")
            run.call(f"on_test_{hook}")
        run.call("on_train_end")
        assert run.file.getvalue() == ""
        assert run.losses_read == 0


def test_one_bar_for_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, terminal=True)
    run.call("on_train_start")
    for step in range(1, 61):
        run.train_to(step, step / 100)
    assert run.losses_read == 2  # in 0.6 s, of 60 steps
    run.call("on_validation_start")
    run.call("on_validation_end")
    assert SHOW_CURSOR not in run.file.getvalue()  # the bar stays for the rest of training
    run.call("on_train_end")
    drawn = run.file.getvalue()
    assert SHOW_CURSOR in drawn
    assert "training" in drawn
    assert "60/100" in drawn
    assert "loss 1.235" in drawn
    assert "60 of 100" not in drawn


@pytest.mark.parametrize(
    "hooks",
    [
        ("validation_start", "validation_batch_end", "validation_end"),
        ("test_start", "test_batch_end", "test_end"),
        ("train_start", "exception"),
        ("train_start", "validation_start", "exception"),
    ],
)
def test_the_terminal_is_given_back(monkeypatch: pytest.MonkeyPatch, hooks: tuple[str]) -> None:
    run = Run(monkeypatch, terminal=True)
    for hook in hooks:
        assert SHOW_CURSOR not in run.file.getvalue()
        run.call(f"on_{hook}", *[KeyboardInterrupt()] * (hook == "exception"))
    assert HIDE_CURSOR in run.file.getvalue()
    assert SHOW_CURSOR in run.file.getvalue()
