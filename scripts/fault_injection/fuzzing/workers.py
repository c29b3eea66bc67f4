"""Processes that run cases: each is forked from this one, which has imported all, and may die."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzzing.cases import HANG, TRACEBACK, Cases, Ending

Case = tuple[str, int]


@dataclass
class _Worker:
    process: Any
    connection: Connection
    case: Case | None = None
    begun: float = 0.0


def run_cases(
    cases: Sequence[Case], root: Path, seed: int, *, n_workers: int, patience: float
) -> Iterator[Ending]:
    """Run cases and give their endings, in the order in which they end.

    Args:
        cases: Areas and numbers.
        root: The folder with ``samples``.
        seed: Of all cases.
        n_workers: Processes.
        patience: Seconds after which a case hangs; its process is killed.
    """
    # This process has imported everything and has no threads, so children begin at once.
    context = multiprocessing.get_context("fork")
    left = list(reversed(cases))
    workers = [_start(context, root, seed) for _ in range(min(n_workers, len(cases)))]
    try:
        while workers:
            for worker in workers:
                if worker.case is None and left:
                    worker.case, worker.begun = left.pop(), time.monotonic()
                    worker.connection.send(worker.case)
            busy = [worker for worker in workers if worker.case is not None]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], timeout=0.5)
            for place, worker in enumerate(workers):
                if worker.case is None:
                    continue
                area, number = worker.case
                seconds = time.monotonic() - worker.begun
                if worker.connection in ready:
                    try:
                        ending = worker.connection.recv()
                    except (EOFError, OSError):
                        worker.process.join(5)
                        died = f"the process died: {worker.process.exitcode}"
                        ending = Ending(area, number, "", TRACEBACK, died, seconds)
                        workers[place] = _start(context, root, seed)
                    worker.case = None
                    yield ending
                elif seconds > patience:
                    os.kill(worker.process.pid, signal.SIGKILL)
                    worker.process.join()
                    worker.case = None
                    workers[place] = _start(context, root, seed)
                    yield Ending(area, number, "", HANG, f"more than {patience:.0f} s", seconds)
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.process.join(2)
            if worker.process.is_alive():
                worker.process.kill()


def _start(context: Any, root: Path, seed: int) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, str(root), seed), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def serve(connection: Connection, root: str, seed: int) -> None:
    """Run the cases that come, in a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(quiet, stream)
    sys.stdin = open(os.devnull)  # noqa: SIM115  as long as the process lives
    cases = Cases(Path(root), seed)
    while True:
        try:
            area, number = connection.recv()
        except EOFError:
            return
        connection.send(cases.run(area, number))


def run_apart(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in a forked process, so that this one is left without threads.

    Raises:
        RuntimeError: If it fails; the traceback is printed.
    """
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with status {process.exitcode}")
