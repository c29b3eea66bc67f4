"""A loop that is stopped finishes its step, keeps its state, and says so."""

import io
import os
import signal

import pytest
import torch
from rich.console import Console

from mttl.io.errors import ConfigError, DivergedError, StopRequested
from mttl.sparse import loop as stoppable_loop
from mttl.sparse.loop import load_state, run_steps, save_state


class Counting:
    """Counts; sends signals at some steps."""

    def __init__(self, signals=(), loss=1.5):
        self.signals = dict(signals)
        self.n_done, self.n_steps, self.doing = 0, 6, "counting"
        self.last_loss, self.loss = None, loss

    def advance(self):
        for number in self.signals.get(self.n_done, ()):
            os.kill(os.getpid(), number)
        self.n_done += 1
        self.last_loss = torch.tensor(self.loss)

    def state_dict(self):
        return {"n_done": self.n_done}


def console():
    return Console(file=io.StringIO(), width=120)


def test_states_are_kept_on_the_way_and_at_the_end(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        stoppable_loop, "save_state", lambda path, state, settings: kept.append(state["n_done"])
    )
    run_steps(Counting(), tmp_path / "state", {}, console(), save_every=4)
    assert kept == [4, 6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step(number, tmp_path):
    before = signal.getsignal(number)
    work = Counting({2: [number]})
    with pytest.raises(StopRequested, match=r"the state was saved; continue with --resume") as stop:
        run_steps(work, tmp_path / "state", {"a": 1}, console(), save_every=100)
    assert stop.value.number == number
    assert load_state(tmp_path / "state", {"a": 1}, resume=True) == {"n_done": 3}
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_at_once(tmp_path):
    work = Counting({2: [signal.SIGINT, signal.SIGINT]})
    with pytest.raises(KeyboardInterrupt):
        run_steps(work, tmp_path / "state", {}, console(), save_every=100)
    assert work.n_done == 2
    assert not (tmp_path / "state").exists()


def test_a_loss_that_is_not_finite_ends_it(tmp_path):
    work = Counting(loss=float("nan"))
    with pytest.raises(DivergedError, match=r"is nan at step 4: .*lower the learning rate"):
        run_steps(work, tmp_path / "state", {}, console(), save_every=4)


def test_states_are_checked(tmp_path):
    path = tmp_path / "state"
    assert load_state(path, {}, resume=True) is None
    save_state(path, {"x": torch.ones(2)}, {"lr": 1.0, "seed": 3})
    with pytest.raises(ConfigError, match="is the state of a stopped run: continue it"):
        load_state(path, {"lr": 1.0, "seed": 3}, resume=False)
    with pytest.raises(ConfigError, match=r"with other settings:\nlr: 1\.0, now 2\.0"):
        load_state(path, {"lr": 2.0, "seed": 3}, resume=True)
