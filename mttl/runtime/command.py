"""What all commands share: exit statuses, messages without tracebacks, quiet libraries.

A command imports what does its work after it has read its command line, so that `run_command` has
begun, and mistakes are answered, before PyTorch is loaded.
"""

import errno
import logging
import os
import re
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

from mttl.errors import MttlError, StopRequested
from mttl.io.files import DISK_REFUSES, GONE, FolderGoneError
from mttl.io.reading import reason
from mttl.plugins.classes import raised_in_plugin
from mttl.runtime.child_process import end_process, follow_launcher
from mttl.runtime.libraries import HARMLESS_LOGGERS, is_error
from mttl.runtime.stop_signals import handling

FILE_WIDTH = 120
SUCCESS, FAULT, USER_MISTAKE, INTERRUPTED = 0, 1, 2, 130

# What a disk may answer that is no fault of the program, and what to do where it is not plain.
_IN_THE_WAY = ". A file stands where a folder is needed: name another folder, or move the file away"
UNWRITABLE = {
    **dict.fromkeys(DISK_REFUSES, ""),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), _IN_THE_WAY),
}

# Libraries whose messages below a warning nobody asked for.
CHATTY = ("httpx", "datasets", "fsspec", "filelock", "torch", "urllib3")
CHATTY += ("pytorch_lightning", "lightning_fabric", "lightning")
NO_TRITON = "Detected no triton"  # torchao again, in the name of no library
_DISK = re.compile(r"\(os error (\d+)\)")
# What libraries of communication say when a process at the other end is gone.
_LOST_PROCESS = ("gloo", "Connection closed by peer", "NCCL communicator was aborted")

# Library messages that a user can do nothing about, each with the reason it is harmless.
HARMLESS = (
    # Loaders are built with 0 workers on purpose: rows are tokenised beforehand.
    ".*does not have many workers.*",
    # The folder is ours, and a resumed run writes into it knowingly.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Batch size for logged means is given where it matters.
    ".*Trying to infer the `batch_size`.*",
    # One epoch may be shorter than the logging interval in short runs.
    ".*The number of training batches .* is smaller than the logging interval.*",
    # No backbone changes the output of its blocks in place, which is what this warns of.
    ".*FSDP2-wrapped module .* returned a view tensor.*",
    # Raised by Lightning's own use of a PyTorch interface.
    ".*isinstance\\(treespec, LeafSpec\\).*",
    # Validation is turned off on purpose: data.validation is none.
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
    ".*Total length of `list` across ranks is zero.*",  # the same
)


def run_command(main: Callable[[], int]) -> int:
    """Run a command and turn what went wrong into a message and an exit status.

    Returns:
        0 on success, 2 on a mistake of the user's, 130 after Ctrl-C, 1 otherwise. The traceback of
        a fault of the program is in a file that the message names.
    """
    # Threads of OpenMP that wait for work spin by default, and take processors from one another.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    follow_launcher(end_process)
    console = make_console(stderr=True)
    _quiet(console)
    try:
        # By default SIGTERM ends a process on the spot, and its workers would live on.
        with handling(_leave, [signal.SIGTERM]):
            return main()
    except MttlError as error:
        console.print(f"error: {error}", markup=False)
        return USER_MISTAKE
    except StopRequested as stop:
        console.print(str(stop), markup=False)
        return INTERRUPTED if stop.number == signal.SIGINT else FAULT
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    except OSError as error:
        if _lost_its_folder(error):
            console.print(f"error: cannot go on with '{error.filename}': {GONE}", markup=False)
            return USER_MISTAKE
        if error.errno not in UNWRITABLE:
            return _fault(console, error)
        where = f" '{error.filename}'" if error.filename else ""
        advice = UNWRITABLE[error.errno]
        console.print(f"error: cannot write{where}: {error.strerror}{advice}", markup=False)
        return USER_MISTAKE
    except Exception as error:
        refusal = _DISK.search(str(error)) if type(error).__name__ == "SafetensorError" else None
        if refusal:  # of a library that writes weights by itself
            told = os.strerror(int(refusal[1]))
            console.print(f"error: cannot write the weights: {told}", markup=False)
            return USER_MISTAKE
        if any(word in str(error) for word in _LOST_PROCESS):
            console.print(
                "error: another process of this command ended; its message is above, or in the log "
                "of its machine. Continue with --resume once the cause is mended",
                markup=False,
            )
            return FAULT
        return _fault(console, error)


def _lost_its_folder(error: OSError) -> bool:
    """Tell whether the folder of a file was removed while a command used it."""
    if isinstance(error, FolderGoneError):
        return True
    named = isinstance(error, FileNotFoundError) and isinstance(error.filename, str)
    return named and not Path(error.filename).parent.is_dir()


def _fault(console: Console, error: Exception) -> int:
    """Say in one line what is at fault, and keep the traceback in a file."""
    lines = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="mttl-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\n\n{lines}")
    except OSError:  # not even that: then on the terminal
        console.print(lines, markup=False)
        name = "above"
    kept = f"the traceback is in '{name}'"
    own = raised_in_plugin(error)
    if own is not None:
        console.print(f"error: {own}; {kept}", markup=False)
        return USER_MISTAKE
    console.print(
        f"error: {type(error).__name__}: {reason(error)}. This is a fault of the program, or a "
        f"damaged file that it does not recognise; {kept}",
        markup=False,
    )
    return FAULT


def make_console(*, stderr: bool = False) -> Console:
    """Return where a command prints; lines in a file need not be as short as a terminal's.

    Args:
        stderr: Print to standard error.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else FILE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=stderr)


@contextmanager
def only_warnings(name: str) -> Iterator[None]:
    """Within the block, or the function that it decorates, show no more of a logger.

    Args:
        name: Of the logger; those below it are meant, too.
    """
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
    # A filter, for libraries that are imported later set levels and handlers of their own.
    handler.addFilter(_is_wanted)
    for library in CHATTY:
        logging.getLogger(library).handlers.clear()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    for name in HARMLESS_LOGGERS:
        logging.getLogger(name).addFilter(is_error)
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Tell whether to print a message: no chatter, and nothing a library prints by itself."""
    if "Child process with PID" in record.getMessage():  # why Lightning kills this one next
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
