"""Worker processes: Python interpreters that answer messages and end with their parent.

Forking is unsafe with threads of torch, and spawning runs the caller's script again. So the child
is a new interpreter that imports one function and gets one end of a socket. It exits when the other
end is closed, which also happens if the parent is killed.
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

# Seconds that a process may still run after its connection was closed.
PATIENCE = 2.0


class WorkerProcess:
    """A new interpreter that calls a function, ``"module:name"``, with the arguments it receives.

    Its standard output is discarded, since minigrid prints rejected layouts; its standard error is
    shared, and it ignores Ctrl-C. Shared file descriptors keep their numbers. Messages contain its
    ``name``.
    """

    def __init__(self, function: str, name: str, shared: Collection[int] = ()) -> None:
        ours, theirs = socket.socketpair()
        self._name = name
        self._connection = Connection(ours.detach())
        self._unanswered = 0
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        # Signal masks are inherited, so the child ignores Ctrl-C from the start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                # -P: do not import modules from the working directory.
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
        """Send arguments, which must be picklable; `answer` waits for the result."""
        try:
            self._connection.send(arguments)
        except OSError as error:
            raise SimulationError(self._end()) from error
        self._unanswered += 1

    def answer(self) -> Any:
        """Return the result of the earliest unanswered message, or raise its exception."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise SimulationError(self._end()) from error
        self._unanswered -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drain(self) -> None:
        """Discard all pending results, such as those of an interrupted exchange."""
        while self._unanswered:
            with suppress(Exception):
                self.answer()

    def _end(self) -> str:
        self._connection.close()
        self._unanswered = 0
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return f"{self._name} does not answer"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"{self._name} died: {how}"


def close_workers(workers: Sequence[WorkerProcess]) -> None:
    """End processes, and kill those that are still busy after `PATIENCE`; may be called again."""
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
    # The worker exits when the other end is closed.
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
