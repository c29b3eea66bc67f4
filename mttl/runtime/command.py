"""Exit statuses of commands, error messages without tracebacks, and quiet libraries.

Commands import PyTorch only after parsing the command line, so that mistakes are reported
immediately.
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

# Disk errors that are not internal errors, with advice.
_IN_THE_WAY = ". A file exists where a folder is needed; choose another folder, or move the file"
UNWRITABLE = {
    **dict.fromkeys(DISK_REFUSES, ""),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), _IN_THE_WAY),
}

# Libraries whose warnings and errors only are shown.
CHATTY = ("httpx", "huggingface_hub", "datasets", "fsspec", "filelock", "torch", "urllib3")
CHATTY += ("pytorch_lightning", "lightning_fabric", "lightning", "fontTools")
NO_TRITON = "Detected no triton"  # torchao, by the root logger
# Messages of communication libraries about a lost process.
_LOST_PROCESS = ("gloo", "Connection closed by peer", "NCCL communicator was aborted")

# Warnings of libraries that users cannot act on, with the reason.
HARMLESS = (
    # Rows are tokenised beforehand, so loaders need no workers.
    ".*does not have many workers.*",
    # A resumed run writes into its own folder.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Batch size for logged means is given where needed.
    ".*Trying to infer the `batch_size`.*",
    # One epoch may be shorter than the logging interval in short runs.
    ".*The number of training batches .* is smaller than the logging interval.*",
    # No backbone changes the output of its blocks in place.
    ".*FSDP2-wrapped module .* returned a view tensor.*",
    # Skills of other runs stay in evaluation mode.
    ".*in eval mode at the start of training.*",
    # Caused by Lightning's own use of a PyTorch interface.
    ".*isinstance\\(treespec, LeafSpec\\).*",
    # data.validation is none.
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
    ".*Total length of `list` across ranks is zero.*",  # likewise
)


def run_command(main: Callable[[], int]) -> int:
    """Run a command, and convert errors into a message and an exit status.

    It is 0 on success, 2 for a user error, 130 after Ctrl-C, 1 otherwise. For an internal error the
    message names a file with the traceback.
    """
    # Idle threads of OpenMP spin by default, and compete for processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    follow_launcher(end_process)
    console = make_console(stderr=True)
    _quiet(console)
    try:
        # By default SIGTERM ends a process immediately, and its workers would continue.
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
    """Return the exit status and message of an error; tracebacks are written to a file."""
    if isinstance(error, MttlError):
        return USER_MISTAKE, str(error)
    if isinstance(error, OSError):
        named = isinstance(error, FileNotFoundError) and isinstance(error.filename, str)
        # The folder of a temporary file may have been recreated since.
        if named and (error.filename.endswith(PART) or not Path(error.filename).parent.is_dir()):
            return USER_MISTAKE, f"the folder of '{error.filename}' was removed"
        if error.errno in UNWRITABLE:
            where = f" '{error.filename}'" if error.filename else ""
            return USER_MISTAKE, f"cannot write{where}: {error.strerror}{UNWRITABLE[error.errno]}"
    elif any(word in str(error) for word in _LOST_PROCESS):
        return FAULT, (
            "another process of this command ended; see its message above, or in the log of its "
            "machine. Fix the cause, then continue with --resume"
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
        f"{type(error).__name__}: {reason(error)}. This is an internal error, or a damaged file "
        f"that was not recognised; {kept}"
    )


def make_console(*, stderr: bool = False) -> Console:
    """Return the console of a command, with a fixed width for files."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else FILE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=stderr)


def say(text: str, *, stderr: bool = False) -> None:
    """Print a text without markup."""
    make_console(stderr=stderr).print(text, markup=False)


@contextmanager
def only_warnings(name: str) -> Iterator[None]:
    """Set a logger to WARNING; context manager or decorator."""
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
    # Libraries imported later set their own levels and handlers.
    handler.addFilter(_is_wanted)
    for library in CHATTY:
        logging.getLogger(library).handlers.clear()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    for name in HARMLESS_LOGGERS:
        logging.getLogger(name).addFilter(is_error)
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message)


def _is_wanted(record: logging.LogRecord) -> bool:
    if "Child process with PID" in record.getMessage():  # Lightning then kills this process
        return True
    if NO_TRITON in record.getMessage():
        return False
    library = record.name.partition(".")[0]
    if library not in CHATTY:
        return True
    return record.levelno >= logging.WARNING and not logging.getLogger(library).handlers


def exit_with(main: Callable[[], int]) -> None:
    """Run a command and exit with its status."""
    sys.exit(run_command(main))
