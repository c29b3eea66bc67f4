"""Processes that end with the one that started them, even where that one was killed."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

# In the environment of processes that one of a training has started: which one.
LAUNCHER = "MTTL_LAUNCHER"
# In that of processes that somebody else has started, and looks after.
_OTHER_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID")
_LOOK = 1.0  # seconds between two looks
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


def note_launcher() -> None:
    """Let processes that this one is going to start know which started them."""
    os.environ[LAUNCHER] = str(os.getpid())


def follow_launcher(end: Callable[[str], object]) -> None:
    """In a process of a training on one machine, see to it that it ends with the first one.

    A thread looks, from the first moment on, until `forget_launcher`: what a library starts cannot
    be given `with_parent`, and waits half an hour for a process that is gone.

    Args:
        end: Called with what happened.
    """
    launcher = os.environ.get(LAUNCHER)
    others = [name for name in _OTHER_LAUNCHERS if name in os.environ]
    if launcher is None or "LOCAL_RANK" not in os.environ or others:
        return
    if launcher == str(os.getpid()):  # it has started others, and has a number among them
        return

    def follow() -> None:
        while os.environ.get(LAUNCHER) == launcher:
            if str(os.getppid()) != launcher:
                end(f"the process that started this one ({launcher}) is gone: it was killed")
            time.sleep(_LOOK)

    threading.Thread(target=follow, name="launcher", daemon=True).start()


def forget_launcher() -> None:
    """End with the first process no longer: from here on, others look after this one."""
    if os.environ.get(LAUNCHER) != str(os.getpid()):
        os.environ.pop(LAUNCHER, None)


def end_process(what: str) -> NoReturn:
    """End this process with a message and status 1 from any thread, whatever the main one does.

    Args:
        what: Happened.
    """
    message = f"error: {what}. This process ends too. Continue the run with --resume\n"
    os.write(2, message.encode())
    os._exit(1)
