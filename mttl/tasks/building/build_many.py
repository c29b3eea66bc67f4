"""Build many tasks of a gym in several processes; an error in one does not stop the others.

A process works on one task at a time. One that dies, for want of memory for example, costs its task
and is replaced. A disk that is full or must not be written ends all, for every task would meet it.
"""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from mttl.io.files import DISK_REFUSES
from mttl.tasks.building.build_gym import Outcome, build_task
from mttl.tasks.task import Task

OnEvent = Callable[[str, int], object]
Build = Callable[..., Outcome]
_SECONDS_TO_LEAVE = 5


def build_many(
    tasks: Sequence[Task],
    out: Path,
    *,
    samples: Sequence[int],
    raw: Path | None = None,
    n_workers: int = 1,
    on_rows: OnEvent = lambda task, n: None,
    build: Build = build_task,
) -> Iterator[Outcome]:
    """Build tasks, and yield the outcome of each when it has ended.

    Args:
        tasks: The tasks.
        out: The gym.
        samples: Which few-shot samples.
        raw: A folder of raw records to take in place of the hub.
        n_workers: How many processes; 1: none but this one.
        on_rows: Called with a task's name and the number of records read since the last call.
        build: Builds one task; a function of a module where there are several processes.

    Yields:
        What became of the tasks, in the order in which they end.

    Raises:
        OSError: If the disk refuses to be written, once the processes have left. Files of finished
            tasks stay.
    """
    one = partial(_guarded, build, out=out, samples=samples, raw=raw)
    if n_workers == 1 or len(tasks) == 1:
        for task in tasks:
            yield one(task, on_rows=partial(on_rows, task.name))
        return
    yield from _in_processes(tasks, one, min(n_workers, len(tasks)), on_rows)


def _guarded(build: Build, task: Task, **options: Any) -> Outcome:
    """Build a task; an unexpected error becomes its outcome, and other tasks go on."""
    try:
        return build(task, **options)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            raise
        return Outcome(task.name, "failed", f"{type(error).__name__}: {error}")


def _in_processes(
    tasks: Sequence[Task], one: Callable[..., Outcome], n_workers: int, on_rows: OnEvent
) -> Iterator[Outcome]:
    waiting = list(reversed(tasks))
    workers: list[_Worker] = []
    try:
        workers += [_Worker(one) for _ in range(n_workers)]
        for worker in workers:
            worker.begin(waiting.pop())
        while busy := {worker.connection: worker for worker in workers if worker.task}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                name = worker.task.name if worker.task else ""
                try:
                    answer = worker.connection.recv()
                except (EOFError, ConnectionError):
                    detail = "its process died; was there too little memory?"
                    answer = Outcome(name, "failed", detail)
                    workers.remove(worker)
                    if waiting:
                        worker = _Worker(one)
                        workers.append(worker)
                if isinstance(answer, int):
                    on_rows(name, answer)
                    continue
                if isinstance(answer, OSError):
                    raise answer
                worker.task = None
                if waiting and worker in workers:
                    worker.begin(waiting.pop())
                yield answer
    finally:
        for worker in workers:
            worker.leave()
        for worker in workers:
            worker.join()


class _Worker:
    """A process, and the task that it works on."""

    def __init__(self, one: Callable[..., Outcome]):
        self.task: Task | None = None
        self.connection, theirs = _context().Pipe()
        self.process = _context().Process(target=_serve, args=(theirs, one), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it has died; reading will tell
            self.connection.send(task)

    def leave(self) -> None:
        if self.task is not None:  # one that is idle goes when it is hung up on
            self.process.terminate()
        self.connection.close()

    def join(self) -> None:
        self.process.join(_SECONDS_TO_LEAVE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _context() -> Any:
    """Return how processes start: as copies of one that has imported what they need."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _serve(connection: Connection, one: Callable[..., Outcome]) -> None:
    """Build tasks until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it too, and decides
    signal.signal(signal.SIGTERM, _leave)
    with suppress(EOFError, ConnectionError):
        while True:
            task = connection.recv()
            try:
                answer = one(task, on_rows=connection.send)
            except OSError as error:
                answer = OSError(error.errno, error.strerror, error.filename)
            connection.send(answer)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)  # so that files that are half written are removed
