"""Processes that work for this one, and always end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from envs import process
from envs.interface import SimulationError
from envs.process import WorkerProcess, close_workers
from helpers.processes import is_running, wait_until_gone

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")


@pytest.fixture
def started() -> Iterator[list[WorkerProcess]]:
    workers: list[WorkerProcess] = []
    yield workers
    close_workers(workers)


def start(started: list[WorkerProcess], function: str) -> WorkerProcess:
    started.append(WorkerProcess(f"helpers.processes:{function}", "the helper"))
    return started[-1]


def test_messages_are_answered_in_order_and_interrupts_are_for_the_parent(started, capfd) -> None:
    worker = start(started, "echo")
    for message in ("still here?", "and now?"):  # at first before it can have done anything
        os.kill(worker.pid, signal.SIGINT)
        worker.ask(message)
        assert worker.answer() == message
    # What the parent does about interrupts is as before.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for message in ("a", {"b": 1}, b"c"):
        worker.ask(message)
    assert worker.answer() == "a"
    worker.drain()
    worker.ask("d")
    assert worker.answer() == "d"
    assert capfd.readouterr() == ("", "")


def test_errors_are_raised_here_and_the_worker_goes_on(started: list[WorkerProcess]) -> None:
    worker = start(started, "obey")
    for order in ("fail", "rest"):
        worker.ask(order)
    with pytest.raises(ValueError, match="it cannot") as caught:
        worker.answer()
    assert "In the worker:" in caught.value.__notes__[0]
    assert worker.answer() is None


@pytest.mark.parametrize(
    ("order", "end"),
    [("leave", "the helper died: exit status 3"), ("crash", "the helper died: SIGKILL")],
)
def test_death_tells_its_cause(started: list[WorkerProcess], order: str, end: str) -> None:
    worker = start(started, "obey")
    worker.ask(order)
    for use in (worker.answer, worker.ask, worker.answer):
        with pytest.raises(SimulationError, match=end):
            use()


def test_closing_ends_idle_workers_and_kills_busy_ones(started, monkeypatch) -> None:
    idle, busy = start(started, "echo"), start(started, "obey")
    busy.ask("sleep")
    monkeypatch.setattr(process, "PATIENCE", 0.5)
    close_workers(started)
    assert not is_running(idle.pid)
    assert not is_running(busy.pid)
    close_workers(started)


def test_workers_end_with_a_parent_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", KILLED_PARENT]
    parent = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.returncode == -signal.SIGKILL
    assert wait_until_gone([int(parent.stdout)])


KILLED_PARENT = """
import os, signal
from envs.process import WorkerProcess
worker = WorkerProcess("helpers.processes:echo", "the helper")
worker.ask("started?")
worker.answer()
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_do_without_torch(started: list[WorkerProcess]) -> None:
    worker = start(started, "name_modules")
    worker.ask()
    modules = worker.answer()
    assert "minigrid" in modules
    assert not {"torch", "mttl"} & set(modules)


def test_a_worker_that_hangs_up_without_ending(started, monkeypatch) -> None:
    monkeypatch.setattr(process, "PATIENCE", 0.05)
    worker = start(started, "obey")
    os.kill(worker.pid, signal.SIGSTOP)  # or it would see the end of the connection and leave
    worker._connection.close()
    with pytest.raises(SimulationError, match="the helper does not answer"):
        worker.ask("sleep")
