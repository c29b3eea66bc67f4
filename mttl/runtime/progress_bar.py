"""A progress bar with counts."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# Seconds between two lines in a log file; and between two losses on a terminal, because reading a
# loss waits for the accelerator.
SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_LOSSES = 0.2


def counting_bar(console: Console, *more: ProgressColumn) -> Progress:
    """Return a bar with a description, the count and the remaining time.

    It is removed at its end, and hidden if the console is a file.

    Args:
        console: Console that shows it.
        *more: Further columns.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *more,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
