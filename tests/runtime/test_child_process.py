"""Children end with their parent."""

import os
import subprocess
import sys

import pytest

from helpers.processes import wait_until_gone
from mttl.runtime import child_process
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


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_parent() is None


def test_a_process_follows_the_one_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    for name in ("LOCAL_RANK", child_process.LAUNCHER):
        os.environ.pop(name, None)
    monkeypatch.setattr(child_process, "_LOOK", 0.01)
    ended: list[str] = []

    def end(what: str) -> None:
        ended.append(what)
        os.environ.pop(child_process.LAUNCHER)  # in truth nothing comes after it

    def follow(parent: int, **variables: str) -> list[str]:
        ended.clear()
        monkeypatch.setattr(os, "getppid", lambda: parent)
        os.environ.update(variables)
        before = set(child_process.threading.enumerate())
        child_process.follow_launcher(end)
        for thread in set(child_process.threading.enumerate()) - before:
            thread.join(0.2)
        child_process.forget_launcher()
        return [*ended]

    child_process.note_launcher()
    assert os.environ[child_process.LAUNCHER] == str(os.getpid())
    assert not follow(1, LOCAL_RANK="0")  # it is the one that has started others
    child_process.forget_launcher()
    assert child_process.LAUNCHER in os.environ
    assert not follow(7, MTTL_LAUNCHER="7")
    assert follow(1, MTTL_LAUNCHER="7") == ["the process that started this one (7) has ended"]
    assert not follow(1, MTTL_LAUNCHER="7", TORCHELASTIC_RUN_ID="run")
