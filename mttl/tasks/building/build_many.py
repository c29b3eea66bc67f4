"""Build many tasks of a gym in several processes; an error in one does not stop the others.

Every task has a process of its own. One that dies, for want of memory for example, costs its task.
A disk that is full or must not be written ends all, for every task would meet it.
"""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mttl.io.files import DISK_REFUSES
from mttl.tasks.building.build_gym import Outcome, build_task
from mttl.tasks.task import Task

Build = Callable[..., Outcome]
_SECONDS_TO_LEAVE = 5


def build_many(
    tasks: Sequence[Task],
    out: Path,
    *,
    samples: Sequence[int],
    raw: Path | None = None,
    n_workers: int = 1,
    build: Build = build_task,
) -> Iterator[Outcome]:
    """Build tasks into a gym, and yield the outcome of each when it has ended.

    Args:
        tasks: The tasks.
        out: The gym.
        samples: Which few-shot samples.
        raw: A folder of raw records to take in place of the hub.
        n_workers: How many processes; 1: none but this one.
        build: Builds one task; a function of a module where there are several processes.

    Raises:
        OSError: If the disk refuses to be written, once the processes have left.
    """
    one = partial(_guarded, build, out=out, samples=samples, raw=raw)
    if n_workers == 1 or len(tasks) == 1:
        yield from map(one, tasks)
    else:
        yield from _in_processes(tasks, one, n_workers)


def _guarded(build: Build, task: Task, **options: Any) -> Outcome:
    """Build a task; an unexpected error becomes its outcome, and other tasks go on."""
    try:
        return build(task, **options)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            raise
        return Outcome(task.name, "failed", f"{type(error).__name__}: {error}")


def _in_processes(
    tasks: Sequence[Task], one: Callable[[Task], Outcome], n_workers: int
) -> Iterator[Outcome]:
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":  # processes are copies of one that has imported what they need
        context.set_forkserver_preload([__name__])
    waiting = list(reversed(tasks))
    running: dict[Any, tuple[Any, Task]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n_workers:
                task = waiting.pop()
                connection, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, one, task), daemon=True)
                process.start()
                theirs.close()
                running[connection] = process, task
            for connection in wait(list(running)):
                try:
                    answer = connection.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    name, why = running[connection][1].name, "was there too little memory?"
                    answer = Outcome(name, "failed", f"its process died; {why}")
                if isinstance(answer, OSError):
                    raise answer
                del running[connection]
                yield answer
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join(_SECONDS_TO_LEAVE)
            process.kill()


def _serve(connection: Connection, one: Callable[[Task], Outcome], task: Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it too, and decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # removes files that are half written
    try:
        answer: Any = one(task)
    except OSError as error:
        answer = OSError(error.errno, error.strerror, error.filename)
    connection.send(answer)
