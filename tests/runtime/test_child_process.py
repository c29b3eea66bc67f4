"""Children end with their parent, and stopped ones are told apart."""

import os
import signal
import subprocess
import sys
import time

import pytest

from envs.process import is_stopped
from helpers.processes import wait_until_gone
from mttl.runtime.child_process import with_parent

PARENT = """
import subprocess, time
from mttl.runtime.child_process import with_parent
print(subprocess.Popen(["sleep", "600"], preexec_fn=with_parent()).pid, flush=True)
time.sleep(600)
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")


@linux
def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert wait_until_gone([child])


@linux
def test_a_stopped_process_is_noticed() -> None:
    with subprocess.Popen(["sleep", "600"], preexec_fn=with_parent()) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 100
        while not is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_parent() is None
    assert not is_stopped(os.getpid())
