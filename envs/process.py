"""A worker process: a Python interpreter that answers messages and ends with its parent.

The usual ways of starting one do not fit here: forking a process in which torch has threads is
unsafe, and spawning runs the caller's script again, with all that it imports. So the child is a
fresh interpreter that imports the one function it is to run and is handed the end of a socket. It
leaves when the other end is closed, which the system does even for a process that was killed.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# How long a process may go on with what it is at after its connection was closed, in seconds.
PATIENCE = 2.0
# How long to wait for an answer before looking whether the process was stopped, in seconds.
LOOK = 5.0


class WorkerDied(Exception):
    """The process at the other end is gone; the text says which, and how it ended."""


class WorkerProcess:
    """A fresh interpreter that runs a function of a connection, which answers every message.

    Its standard output is dropped (minigrid prints every layout it rejects), its standard error is
    ours, and Ctrl-C is for this process alone.

    Args:
        function: What to run, as ``"module:name"``; it is called with a `Connection`.
        name: What to call it should it die.
        shared: File descriptors that the process gets under the same numbers.
    """

    def __init__(self, function: str, name: str, shared: Collection[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        self._name, self._owner = name, os.getpid()
        self._connection = Connection(ours.detach())
        self._unanswered = 0
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        with theirs, _interrupts_blocked():
            self._process = subprocess.Popen(
                # -P: a file in the working directory must not pass for a module.
                [sys.executable, "-P", "-m", "envs.process", str(theirs.fileno()), function],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *shared],
                env={**os.environ, "PYTHONPATH": paths},
            )
        self.pid = self._process.pid

    def ask(self, message: Any) -> None:
        """Send a message, anything that can be pickled; `answer` waits for what it brings.

        Raises:
            WorkerDied: If nobody is there to receive it.
        """
        try:
            self._connection.send(message)
        except OSError as error:
            raise WorkerDied(self._end()) from error
        self._unanswered += 1

    def answer(self) -> Any:
        """Wait for the answer to the earliest message that has none.

        Raises:
            WorkerDied: If there will be none, or the process was stopped.
        """
        try:
            while not self._connection.poll(LOOK):
                if is_stopped(self.pid):
                    raise WorkerDied(f"{self._name} was stopped by a signal (process {self.pid})")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(self._end()) from error
        self._unanswered -= 1
        return answer

    def outstanding(self) -> Iterator[Any]:
        """Wait for all answers nobody has waited for, such as those of an interrupted exchange."""
        while self._unanswered:
            yield self.answer()

    def _end(self) -> str:
        self._connection.close()
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return f"{self._name} stopped answering"
        if status < 0:
            return f"{self._name} died: {signal.Signals(-status).name}"
        return f"{self._name} died: exit status {status}"


def close_workers(workers: Sequence[WorkerProcess]) -> None:
    """End processes; what is still busy after a while is killed. Closed ones may be given again."""
    # A process that was forked from this one has the same objects, but these are not its children.
    workers = [worker for worker in workers if worker._owner == os.getpid()]
    for worker in workers:
        worker._connection.close()
    for worker in workers:
        try:
            worker._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            worker._process.kill()
            worker._process.wait()


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped, as by SIGSTOP; False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    # Signal masks are inherited: the child never sees Ctrl-C, not even while it starts.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(descriptor: str, function: str) -> None:
    module, name = function.split(":")
    gone = EOFError, BrokenPipeError, ConnectionResetError
    # Where the other end is closed it is time to leave.
    with suppress(*gone), Connection(int(descriptor)) as connection:
        getattr(importlib.import_module(module), name)(connection)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
