"""What worker processes of tests run."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def echo(message: object) -> object:
    print("nobody should see this")
    return message


def obey(order: str) -> None:
    """Leave, crash, sleep or fail, as requested."""
    match order:
        case "leave":
            sys.exit(3)
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(600)
        case "fail":
            raise ValueError("it cannot")


def name_modules() -> list[str]:
    """Say what is imported once the environments are."""
    import envs.demonstrations
    import envs.vector  # noqa: F401

    return sorted(sys.modules)


def is_running(pid: int) -> bool:
    """Say whether a process lives; one that nobody has waited for yet is dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return what a condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def wait_until_gone(pids: list[int], seconds: float = 120.0) -> bool:
    """Wait for processes to end; True if they did."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))
