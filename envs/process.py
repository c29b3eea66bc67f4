"""A worker process: a Python interpreter that answers messages and ends with its parent.

Forking a process in which torch has threads is unsafe, and spawning runs the caller's script again.
So the child is a fresh interpreter that imports the one function it is to run and is handed the end
of a socket. It leaves when the other end is closed, which the system does even for a process that
was killed.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from envs.interface import SimulationError

# How long a process may go on with what it is at after its connection was closed, in seconds.
PATIENCE = 2.0


class WorkerProcess:
    """A fresh interpreter that calls a function, ``"module:name"``, with what it is sent.

    Its standard output is dropped (minigrid prints every layout it rejects), its standard error is
    ours, and Ctrl-C is for this process alone. The shared file descriptors have the same numbers.
    Errors call the process by its ``name``.
    """

    def __init__(self, function: str, name: str, shared: Collection[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        self._name = name
        self._connection = Connection(ours.detach())
        self._unanswered = 0
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        # Signal masks are inherited: the child never sees Ctrl-C, not even while it starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                # -P: a file in the working directory must not pass for a module.
                [sys.executable, "-P", "-m", "envs.process", str(theirs.fileno()), function],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *shared],
                env={**os.environ, "PYTHONPATH": paths},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.pid = self._process.pid

    def ask(self, *arguments: Any) -> None:
        """Send arguments, anything that can be pickled; `answer` waits for what they bring."""
        try:
            self._connection.send(arguments)
        except OSError as error:
            raise SimulationError(self._end()) from error
        self._unanswered += 1

    def answer(self) -> Any:
        """Wait for the answer to the earliest message that has none; raise what it raised.

        Raises:
            SimulationError: If the process has died.
        """
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise SimulationError(self._end()) from error
        self._unanswered -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drain(self) -> None:
        """Drop all answers nobody has waited for, such as those of an interrupted exchange."""
        while self._unanswered:
            with suppress(Exception):
                self.answer()

    def _end(self) -> str:
        self._connection.close()
        self._unanswered = 0
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return f"{self._name} stopped answering"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"{self._name} died: {how}"


def close_workers(workers: Sequence[WorkerProcess]) -> None:
    """End processes; what is still busy after a while is killed. Closed ones may be given again."""
    for worker in workers:
        worker._connection.close()
    for worker in workers:
        try:
            worker._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            worker._process.kill()
            worker._process.wait()


def _serve(descriptor: str, function: str) -> None:
    module, name = function.split(":")
    call = getattr(importlib.import_module(module), name)
    gone = EOFError, BrokenPipeError, ConnectionResetError
    # Where the other end is closed it is time to leave.
    with suppress(*gone), Connection(int(descriptor)) as connection:
        while True:
            arguments = connection.recv()
            try:
                answer = call(*arguments)
            except Exception as error:
                error.add_note(f"In the worker:\n{traceback.format_exc()}")
                answer = error
            connection.send(answer)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
