"""Exit statuses of commands, messages without tracebacks, and quiet libraries.

Commands import PyTorch only after they have read their command line, so that mistakes are reported
at once.
"""

import errno
import logging
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.logging import RichHandler

from mttl.io.errors import MttlError, StopRequested
from mttl.io.files import DISK_REFUSES, PART
from mttl.io.reading import reason
from mttl.plugins.classes import raised_in_plugin
from mttl.runtime.child_process import end_process, follow_launcher
from mttl.runtime.libraries import HARMLESS_LOGGERS, is_error
from mttl.runtime.stop_signals import handling

FILE_WIDTH = 120
SUCCESS, FAULT, USER_MISTAKE, INTERRUPTED = 0, 1, 2, 130

# Answers of a disk that are not a fault of the program, and advice.
_IN_THE_WAY = ". A file stands where a folder is needed: name another folder, or move the file away"
UNWRITABLE = {
    **dict.fromkeys(DISK_REFUSES, ""),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), _IN_THE_WAY),
}

# Libraries of which only warnings and errors are shown.
CHATTY = ("httpx", "datasets", "fsspec", "filelock", "torch", "urllib3")
CHATTY += ("pytorch_lightning", "lightning_fabric", "lightning")
NO_TRITON = "Detected no triton"  # torchao, by the root logger
# Messages of communication libraries about a lost process.
_LOST_PROCESS = ("gloo", "Connection closed by peer", "NCCL communicator was aborted")

# Warnings of libraries that no user can act on, with the reason.
HARMLESS = (
    # Rows are tokenised beforehand, so loaders need no workers.
    ".*does not have many workers.*",
    # A resumed run writes into its own folder.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Batch size for logged means is given where it matters.
    ".*Trying to infer the `batch_size`.*",
    # One epoch may be shorter than the logging interval in short runs.
    ".*The number of training batches .* is smaller than the logging interval.*",
    # No backbone changes the output of its blocks in place.
    ".*FSDP2-wrapped module .* returned a view tensor.*",
    # Raised by Lightning's own use of a PyTorch interface.
    ".*isinstance\\(treespec, LeafSpec\\).*",
    # data.validation is none.
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
    ".*Total length of `list` across ranks is zero.*",  # the same
)


def run_command(main: Callable[[], int]) -> int:
    """Run a command; turn errors into a message and an exit status.

    Returns:
        0 on success, 2 on a mistake of the user, 130 after Ctrl-C, 1 otherwise. The message about
        a fault of the program names a file with the traceback.
    """
    # Idle threads of OpenMP spin by default, and take processors from one another.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    follow_launcher(end_process)
    console = make_console(stderr=True)
    _quiet(console)
    try:
        # By default SIGTERM ends a process on the spot, and its workers would live on.
        with handling(_leave, [signal.SIGTERM]):
            return main()
    except StopRequested as stop:
        console.print(str(stop), markup=False)
        return INTERRUPTED if stop.number == signal.SIGINT else FAULT
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    except Exception as error:
        status, text = _explain(error)
        console.print(f"error: {text}", markup=False)
        return status


def _explain(error: Exception) -> tuple[int, str]:
    """Return the exit status of an error and its message; the traceback of a fault is in a file."""
    if isinstance(error, MttlError):
        return USER_MISTAKE, str(error)
    if isinstance(error, OSError):
        named = isinstance(error, FileNotFoundError) and isinstance(error.filename, str)
        # Where a file was being written, something may have made the folder again since.
        if named and (error.filename.endswith(PART) or not Path(error.filename).parent.is_dir()):
            return USER_MISTAKE, f"the folder of '{error.filename}' is gone"
        if error.errno in UNWRITABLE:
            where = f" '{error.filename}'" if error.filename else ""
            advice = UNWRITABLE[error.errno]
            return USER_MISTAKE, f"cannot write{where}: {error.strerror}{advice}"
    elif any(word in str(error) for word in _LOST_PROCESS):
        return FAULT, (
            "another process of this command ended; its message is above, or in the log of its "
            "machine. Continue with --resume once the cause is fixed"
        )
    lines = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="mttl-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\n\n{lines}")
        kept = f"the traceback is in '{name}'"
    except OSError:
        say(lines, stderr=True)
        kept = "the traceback is above"
    if (own := raised_in_plugin(error)) is not None:
        return USER_MISTAKE, f"{own}; {kept}"
    return FAULT, (
        f"{type(error).__name__}: {reason(error)}. This is a fault of the program, or a damaged "
        f"file that it does not recognise; {kept}"
    )


def make_console(*, stderr: bool = False) -> Console:
    """Return the console of a command; lines in a file may be longer than those of a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else FILE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=stderr)


def say(text: str, *, stderr: bool = False) -> None:
    """Print a text as it is."""
    make_console(stderr=stderr).print(text, markup=False)


@contextmanager
def only_warnings(name: str) -> Iterator[None]:
    """Set a logger and those below it to WARNING; context manager or decorator."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(FAULT)


def _quiet(console: Console) -> None:
    handler = RichHandler(console=console, show_time=False, show_path=False, show_level=False)
    # Libraries that are imported later set their own levels and handlers.
    handler.addFilter(_is_wanted)
    for library in CHATTY:
        logging.getLogger(library).handlers.clear()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    for name in HARMLESS_LOGGERS:
        logging.getLogger(name).addFilter(is_error)
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return whether to print a message."""
    if "Child process with PID" in record.getMessage():  # Lightning kills this process next
        return True
    if NO_TRITON in record.getMessage():
        return False
    library = record.name.partition(".")[0]
    if library not in CHATTY:
        return True
    return record.levelno >= logging.WARNING and not logging.getLogger(library).handlers


def exit_with(main: Callable[[], int]) -> None:
    """Run a command and leave the process with its status."""
    sys.exit(run_command(main))
