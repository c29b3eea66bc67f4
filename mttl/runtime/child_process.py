"""Child processes that end with their parent, even if it was killed."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

# Environment variable with the id of the process that started a training's other processes.
LAUNCHER = "MTTL_LAUNCHER"
# Variables of other launchers, which end their processes themselves.
_OTHER_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID")
_LOOK = 1.0  # seconds between checks
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def with_parent() -> Callable[[], None] | None:
    """Return a ``preexec_fn`` for `subprocess.Popen` that ends a child with its parent.

    On Linux the child is killed when the thread that started it ends; None on other systems.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Resolved before the fork, because the child of a threaded process should do little.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died in the meantime
            os._exit(1)

    return ask


def note_launcher() -> None:
    """Set `LAUNCHER` for processes that Lightning starts, unless this is one of them."""
    if "LOCAL_RANK" not in os.environ:
        os.environ[LAUNCHER] = str(os.getpid())


def follow_launcher(end: Callable[[str], object]) -> None:
    """Call ``end`` with a reason when the process that started this one has ended.

    A thread checks every second until `forget_launcher`: Lightning starts processes without
    `with_parent`, and collectives wait half an hour for a lost process.
    """
    launcher = os.environ.get(LAUNCHER)
    others = [name for name in _OTHER_LAUNCHERS if name in os.environ]
    if launcher in (None, str(os.getpid())) or "LOCAL_RANK" not in os.environ or others:
        return

    def follow() -> None:
        while os.environ.get(LAUNCHER) == launcher:
            if str(os.getppid()) != launcher:
                end(f"the process that started this one ({launcher}) has ended")
            time.sleep(_LOOK)

    threading.Thread(target=follow, name="launcher", daemon=True).start()


def forget_launcher() -> None:
    """Stop `follow_launcher`, because this process no longer needs others."""
    if os.environ.get(LAUNCHER) != str(os.getpid()):
        os.environ.pop(LAUNCHER, None)


def end_process(reason: str) -> NoReturn:
    """End this process with status 1 from any thread, and print the reason."""
    message = f"error: {reason}. This process exits as well. Continue the run with --resume\n"
    os.write(2, message.encode())
    os._exit(1)
