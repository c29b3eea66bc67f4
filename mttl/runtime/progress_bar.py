"""Progress bar with counts; in a log file, lines with the remaining time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# Seconds between lines in a log file; and between losses on a terminal, because reading a loss
# waits for the accelerator.
SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_LOSSES = 0.2


def counting_bar(console: Console, *more: ProgressColumn, live: bool = True) -> Progress:
    """Return a progress bar with description, count, remaining time and ``more`` columns.

    It is removed at its end, and hidden if the console is a file, or with ``live=False`` for work
    that has its own bar.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *more,
        console=console,
        transient=True,
        disable=not (live and console.is_terminal),
    )


class Count:
    """Progress of a job; in a log file it prints lines with the remaining time."""

    def __init__(self, console: Console, bar: Progress, name: str, total: int, done: int) -> None:
        self.done, self.total, self.name = done, total, name
        self._console, self._bar, self._begun_at = console, bar, done
        self._task = bar.add_task(name, total=total, completed=done, shown="")
        self._started = self._last_news = time.monotonic()

    def advance(self, n: int = 1) -> None:
        """Add ``n`` to the count."""
        self.set(self.done + n)

    def set(self, done: int, more: Callable[[], str] = str) -> None:
        """Set the count, and text next to it; ``more`` may wait for a device."""
        self.done = done
        self._bar.update(self._task, completed=done)
        now, terminal = time.monotonic(), self._console.is_terminal
        if now - self._last_news < (SECONDS_BETWEEN_LOSSES if terminal else SECONDS_BETWEEN_LINES):
            return
        self._last_news = now
        if terminal:
            self._bar.update(self._task, shown=more())
        else:
            line = f"{self.name}: {done} of {self.total}{more()}{self.left}"
            self._console.print(line, highlight=False)

    def remove(self) -> None:
        """Remove the bar."""
        self._bar.remove_task(self._task)

    @property
    def left(self) -> str:
        """End of a line with the remaining time; empty at the start and the end."""
        remaining, done = self.total - self.done, self.done - self._begun_at
        seconds = time.monotonic() - self._started
        return f", about {remaining * seconds / done:.0f} s left" if remaining and done else ""


@contextmanager
def counting(
    console: Console, name: str, total: int, done: int = 0, *, live: bool = True
) -> Iterator[Count]:
    """Context manager that shows a `Count`; without ``live``, only its lines."""
    with counting_bar(console, live=live) as bar:
        yield Count(console, bar, name, total, done)
