"""Processes that end with the one that started them, even where that one was killed."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def with_parent() -> Callable[[], None] | None:
    """Return what a child has to call first, as ``preexec_fn`` of `subprocess.Popen`.

    The system then kills the child when the thread that started it ends. None where the system is
    not Linux: there a child lives on when its parent is killed.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Looked up here: a child of a process with threads should do as little as possible.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)

    return ask
