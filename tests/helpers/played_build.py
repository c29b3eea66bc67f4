"""A stand-in for a build, in a module that worker processes can import too."""

import errno
import os
import time
from pathlib import Path

from mttl.tasks.building.build_gym import Outcome


def play(task, out: Path, samples, raw):
    """Stand in for a build, in a process of its own or in this one."""
    (out / f"{task.name}.{os.getpid()}").touch()
    if task.name.startswith("dies"):
        os._exit(9)
    if task.name.startswith("faulty"):
        raise ZeroDivisionError("a fault")
    if task.name.startswith("unreadable"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    if task.name.startswith("full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/file")
    if task.name.startswith("slow"):
        try:
            (out / "begun").touch()
            time.sleep(600)
        finally:
            (out / "cleaned").touch()
    return Outcome(task.name, "built")
