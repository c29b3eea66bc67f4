"""Errors that users can fix: commands print the message of an `MttlError` and exit with status 2.

Other exceptions are internal errors, whose traceback is written to a file.
"""

import difflib
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class MttlError(Exception):
    """An error that the user can fix; the message has the cause and the remedy."""


class ConfigError(MttlError, ValueError):
    """A configuration that cannot be read, is invalid, or cannot be built."""


class TaskError(MttlError, ValueError):
    """A task, a partition or a data file that is missing, malformed or inconsistent."""


class CheckpointError(MttlError, ValueError):
    """A saved inventory that is damaged, of another format, or made for another backbone."""


class TrainingError(MttlError, RuntimeError):
    """A training that cannot continue."""


class DivergedError(TrainingError):
    """A training with a loss or weights that are not finite."""


class StopRequested(Exception):
    """A run was stopped by a signal; its checkpoint has the state, if it was saved."""

    def __init__(self, number: signal.Signals, checkpoint: Path) -> None:
        saved = "the state was saved; continue with --resume"
        unsaved = "no state had been saved yet"
        super().__init__(f"stopped by {number.name}; {saved if checkpoint.is_file() else unsaved}")
        self.number = number


@contextmanager
def raised_as(
    error: type[Exception], place: str, *causes: type[Exception], text: Callable[[Any], str] = str
) -> Iterator[None]:
    """Convert errors of the classes ``causes`` into an ``error`` with the place in its message."""
    try:
        yield
    except causes as cause:
        raise error(f"{place}: {text(cause)}" if place else text(cause)) from cause


def nearest(name: str, options: Iterable[str], n: int = 3) -> str:
    """Return ``" Did you mean 'a' or 'b'?"`` for the options closest to a name, or ``""``."""
    close = difflib.get_close_matches(name, map(str, options), n=n, cutoff=0.5)
    named = " or ".join(f"'{option}'" for option in close)
    return f" Did you mean {named}?" if close else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first names joined by commas, and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def grouped(causes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one line per cause with members."""
    return [f"{cause}: {some(names)}" for cause, names in causes.items() if names]


def require_at_least(least: int, **values: float | None) -> None:
    """Raise a `ValueError` for numbers below a bound; None passes."""
    must = f"be at least {least}" if least else "not be negative"
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} ({value}) must {must}")


def require_positive(**values: float) -> None:
    """Raise a `ValueError` for numbers that are not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} ({value}) must be positive")


def require_one_of(choices: Collection[str], **values: str) -> None:
    """Raise a `ValueError` for words that are not among the choices."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} ('{value}') must be one of {', '.join(choices)}")


def require_at_most(bound: str, most: float, **values: float) -> None:
    """Raise a `ValueError` for numbers above ``most``, which is called ``bound``."""
    for name, value in values.items():
        if value > most:
            raise ValueError(f"{name} ({value}) must be at most {bound} ({most})")
