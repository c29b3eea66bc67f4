"""Run the commands of a comparison once, and record their cost."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from mttl.io.errors import MttlError
from mttl.io.record import Record
from mttl.runtime.child_process import with_parent
from mttl.runtime.processes import gpu_environment

POLL = 0.2  # seconds between checks of a running command


class Cost(Record):
    """Cost of a command, summed over attempts, and whether it has succeeded."""

    cpu_minutes: float = 0.0
    peak_mib: float = 0.0
    ended: bool = False

    @classmethod
    def so_far(cls, path: Path) -> "Cost":
        """Return the recorded cost, or zero cost."""
        return cls.read(path) if path.exists() else cls()


class Processes:
    """Runs several commands in parallel, and terminates them when this process stops."""

    def __init__(self, n_threads: int) -> None:
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
        # The lowest free number of each process, which selects its GPU.
        self._running: dict[subprocess.Popen[bytes], int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Terminate all commands when the block is left early, and wait for them."""
        try:
            yield
        finally:
            with self._lock:
                self._stopped = True
                for process in self._running:
                    # Not `terminate`, which could consume the exit status that `run` waits for.
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGTERM)

    def run(self, command: list[str], log: Path, cost: Path) -> None:
        """Run a Python command to completion, and record its cost."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            with self._lock:
                if self._stopped:
                    raise MttlError("stopped")
                number = next(free for free in count(1) if free not in self._running.values())
                process = subprocess.Popen(
                    [sys.executable, *command],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, **gpu_environment(number)},
                    # Ctrl-C reaches only this process, which forwards it once: a second signal
                    # would make a training exit without a checkpoint.
                    start_new_session=True,
                    preexec_fn=with_parent(),
                )
                self._running[process] = number
            ended, peak = 0, 0.0
            while not ended:
                peak = max(peak, peak_memory(process.pid))
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                time.sleep(0 if ended else POLL)
            process.returncode = os.waitstatus_to_exitcode(status)
            with self._lock:
                self._running.pop(process, None)
        before = Cost.so_far(cost)
        unit = 2**20 if sys.platform == "darwin" else 2**10
        # This peak includes the process before exec, so it is only a fallback.
        peak = peak or usage.ru_maxrss / unit
        Cost(
            cpu_minutes=before.cpu_minutes + (usage.ru_utime + usage.ru_stime) / 60,
            peak_mib=max(before.peak_mib, peak),
            ended=process.returncode == 0,
        ).write(cost)
        if process.returncode and not self._stopped:
            name = f"mttl {command[2]}" if command[0] == "-m" else Path(command[0]).name
            raise MttlError(f"'{name}' failed; see its output in '{log}'")


def peak_memory(pid: int) -> float:
    """Return the peak resident memory of a running process in MiB; 0 if unknown."""
    status = Path(f"/proc/{pid}/status")  # exists until the process is waited for
    text = status.read_text("ascii", errors="replace") if status.exists() else ""
    found = re.search(r"^VmHWM:\s*(\d+)", text, re.M)
    return int(found[1]) / 2**10 if found else 0.0
