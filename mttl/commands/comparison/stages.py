"""Long commands, each run once; their cost is recorded when they end."""

import os
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

POLL = 0.2  # seconds between two looks at a command


class Cost(Record):
    """The cost of a command, summed over its attempts, and whether it has ended well."""

    cpu_minutes: float = 0.0
    peak_mib: float = 0.0
    ended: bool = False

    @classmethod
    def so_far(cls, path: Path) -> "Cost":
        """Return the recorded cost, or a cost of nothing."""
        return cls.read(path) if path.exists() else cls()


class Processes:
    """Runs commands, several at once, and ends all of them when this process has to stop."""

    def __init__(self, n_threads: int) -> None:
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
        # With a number for each, the lowest that is free, by which it takes a GPU.
        self._running: dict[subprocess.Popen[bytes], int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Ask all commands to end when the block is left early, and wait for them."""
        try:
            yield
        finally:
            with self._lock:
                self._stopped = True
                for process in self._running:
                    # Not `terminate`, which may take the exit status that `run` waits for.
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGTERM)

    def run(self, command: list[str], log: Path, cost: Path) -> None:
        """Run a Python command to its end, and record its cost."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            with self._lock:
                if self._stopped:
                    raise MttlError("stopped")
                taken = self._running.values()
                number = next(free for free in count(1) if free not in taken)
                process = subprocess.Popen(
                    [sys.executable, *command],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, **gpu_environment(number)},
                    # Ctrl-C is for this process, which passes it on once: the second would tell a
                    # training to leave without a checkpoint.
                    start_new_session=True,
                    preexec_fn=with_parent(),
                )
                self._running[process] = number
            ended, peak = 0, 0.0
            while not ended:
                peak = max(peak, _peak_so_far(process.pid))
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                time.sleep(0 if ended else POLL)
            process.returncode = os.waitstatus_to_exitcode(status)
            with self._lock:
                self._running.pop(process, None)
        before = Cost.so_far(cost)
        unit = 2**20 if sys.platform == "darwin" else 2**10
        # Its peak counts this process too, from which the command was forked: only a fallback.
        peak = peak or usage.ru_maxrss / unit
        Cost(
            cpu_minutes=before.cpu_minutes + (usage.ru_utime + usage.ru_stime) / 60,
            peak_mib=max(before.peak_mib, peak),
            ended=process.returncode == 0,
        ).write(cost)
        if process.returncode and not self._stopped:
            name = f"mttl {command[2]}" if command[0] == "-m" else Path(command[0]).name
            raise MttlError(f"'{name}' failed; its output is in '{log}'")


def _peak_so_far(pid: int) -> float:
    """Return the largest resident memory of a running process in MiB; 0 where it is not known."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) / 2**10 if found else 0.0
