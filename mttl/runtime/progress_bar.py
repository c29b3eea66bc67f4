"""The bar of work that is counted."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# Where no terminal redraws a bar (a log file), a line is printed this often; on a terminal the loss
# is read this often, because reading it waits for an accelerator.
SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_LOSSES = 0.2


def counting_bar(console: Console, *more: ProgressColumn) -> Progress:
    """Return a bar with a description, how many of how many, and the time that is left.

    It is gone when it ends, and never there where the console is a file.

    Args:
        console: Where it is shown.
        *more: What is shown after it.
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
