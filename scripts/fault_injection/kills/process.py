"""A command in a process of its own: a copy of one that has imported the libraries already.

Importing takes ten times as long as the commands of the test themselves.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from kills.faults import Changes, Fault

ROOT = Path(__file__).resolve().parents[3]
MARK = "MTTL_DRILL"  # in the environment of processes that a command starts
PATIENCE = 15.0  # seconds until these must have ended after the command
TIMEOUT = 400.0
TRACEBACK = "Traceback (most recent call last)"
_CONTEXT = multiprocessing.get_context("forkserver")
# A status can be read once, and a start reads those of all processes, also of other threads.
_STATUSES = threading.Lock()


@dataclass(frozen=True)
class Attempt:
    """How a start of a command ended.

    Attributes:
        status: Exit status; that of a signal is negative. None: it hung.
        output: What it printed.
        struck: Whether the fault, or the kill from outside, met it.
        changes: How often it changed the file system; 0 where it was killed.
        seconds: How long it took.
        left_running: Processes that outlived it.
    """

    status: int | None
    output: str
    struck: bool
    changes: int
    seconds: float
    left_running: int

    @property
    def traceback(self) -> bool:
        """Whether a traceback was printed, or put into a file."""
        return any(text in self.output for text in (TRACEBACK, "This is a fault of the program"))


def prepare() -> None:
    """Let the imports be made once."""
    paths = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "fault_injection")]
    os.environ.update(
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_OFFLINE="1",
        PYTHONPATH=os.pathsep.join(paths),
    )
    sys.path += [path for path in paths if path not in sys.path]
    _CONTEXT.set_forkserver_preload(["kills.preload"])


def attempt(
    command: str,
    arguments: list[str],
    folder: Path,
    *,
    temporary: Path,
    logs: Path,
    fault: Fault | None = None,
    kill_after: float | None = None,
) -> Attempt:
    """Run a command in a folder and wait for its end.

    Args:
        command: As it is typed after ``mttl``.
        arguments: Its command line.
        folder: The working directory.
        temporary: The folder of temporary files.
        logs: Folder for what it prints; emptied first.
        fault: What happens to it.
        kill_after: Kill it and all that it started after so many seconds.
    """
    logs.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(parents=True, exist_ok=True)
    for path in logs.iterdir():
        path.unlink()
    mark = f"{os.getpid()}-{folder.name}-{time.monotonic_ns()}"
    given = (command, arguments, str(folder), str(temporary), str(logs), fault or Fault(), mark)
    process: Any = _CONTEXT.Process(target=_run, args=given)
    begun = time.monotonic()
    with _STATUSES:
        process.start()
    killed = not wait([process.sentinel], TIMEOUT if kill_after is None else kill_after)
    if killed:
        _kill_group(process.pid)
        wait([process.sentinel])
    with _STATUSES:
        status = process.exitcode
    seconds = time.monotonic() - begun
    changes = logs / "changes"
    return Attempt(
        None if killed and kill_after is None else status,
        (logs / "output").read_text(errors="replace") if (logs / "output").exists() else "",
        (killed and status != 0) or (logs / "struck").exists(),
        int(changes.read_text()) if changes.exists() else 0,
        seconds,
        _end_marked(mark),
    )


def _run(
    command: str,
    arguments: list[str],
    folder: str,
    temporary: str,
    logs: str,
    fault: Fault,
    mark: str,
) -> None:
    """Run a command in this process, which was made for it."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not forked
    output = os.open(f"{logs}/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.update({"TMPDIR": temporary, MARK: mark})
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["mttl", *command.split(), *arguments]
    from mttl.__main__ import main
    from mttl.runtime.command import run_command

    roots = (os.path.abspath(folder), os.path.abspath(temporary))
    changes = Changes(fault, roots, Path(logs, "struck"))
    changes.install()
    try:
        status = run_command(lambda: main([*command.split(), *arguments]))
    finally:
        changes.fault = Fault()
        Path(logs, "changes").write_text(str(changes.count))
    sys.exit(status)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not come so far as to have one, or has just ended
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_marked(mark: str) -> int:
    """Wait for processes that a command started; kill and count those that stay."""
    deadline = time.monotonic() + PATIENCE
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(left)


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
