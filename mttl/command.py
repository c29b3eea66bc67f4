"""What all commands share: exit statuses, messages without tracebacks, quiet libraries.

A command imports what does its work after it has read its command line, so that `run_command` has
begun, and mistakes are answered, before PyTorch is loaded.
"""

import argparse
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
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from mttl.child_process import end_process, follow_launcher
from mttl.errors import MttlError, StopRequested
from mttl.files import DISK_REFUSES, GONE, FolderGoneError
from mttl.own_classes import failed_in, trust
from mttl.reading import reason, shown
from mttl.stop_signals import handling
from mttl.version import VERSION

# What `mttl NAME` runs, by what it is for. Scripts that only serve a checkout are no commands.
COMMAND_GROUPS = {
    "train and adapt": {
        "train": "pl_train.py",
        "adapt": "pl_finetune.py",
        "search": "pl_search.py",
        "add-tasks": "scripts/add_tasks.py",
        "sparse": "scripts/sparse_finetune.py",
        "plan": "scripts/memory_plan.py",
    },
    "ask": {
        "predict": "pl_predict.py",
        "serve": "scripts/serve.py",
    },
    "look": {
        "explore": "scripts/explore.py",
        "plot": "scripts/plot_routing.py",
        "ablate": "scripts/ablate.py",
        "film": "scripts/film_policy.py",
    },
    "merge and exchange": {
        "merge": "scripts/merge_skills.py",
        "merge-task": "scripts/merge_task.py",
        "fisher": "scripts/estimate_fisher.py",
        "compose": "scripts/compose_skills.py",
        "export": "scripts/export_peft.py",
        "import": "scripts/import_peft.py",
        "library": "scripts/library.py",
    },
    "data and backbones": {
        "build": "scripts/build_crossfit.py",
        "record": "scripts/record_demonstrations.py",
        "pretrain": "scripts/pretrain_backbone.py",
    },
    "compare": {
        "compare": "scripts/compare.py",
        "summarise": "scripts/summarise_runs.py",
    },
}
COMMANDS = {name: script for group in COMMAND_GROUPS.values() for name, script in group.items()}
# Under which its options stand in the help of a command.
READ, WORK, WRITTEN = "what is read", "how it is done", "what is written"

FILE_WIDTH = 120
MOST_PROCESSES = 256  # of one command; machines with more cores share the work by folders
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
# Where transformers finds libraries of quantisation it imports them, and they tell of kernels that
# a machine has no use for. What fails raises an error besides.
HARMLESS_LOGGERS = ("torchao", "bitsandbytes.backends.cpu.ops", "bitsandbytes.backends.utils")
HARMLESS_LOGGERS += ("torch.utils._pytree",)
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
    own = failed_in(error)
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
        logging.getLogger(name).addFilter(_is_error)
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


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


class CommandParser(argparse.ArgumentParser):
    """A command line whose help shows options in groups."""

    def group(self, title: str) -> "argparse._ArgumentGroup":
        """Return the group of options with a title, which is made when it is first asked for."""
        there = (group for group in self._action_groups if group.title == title)
        return next(there, None) or self.add_argument_group(title)

    def format_help(self) -> str:
        """Return the help, in which what is written stands last."""
        self._action_groups.sort(key=lambda group: group.title == WRITTEN)
        return super().format_help()


def make_parser(description: str | None, name: str | None = None) -> CommandParser:
    """Return the parser of a command line.

    Args:
        description: What the command does; its lines are kept.
        name: What it is called; by default as it was called.
    """
    if name is None and (name := _called()) is not None:
        for command, script in COMMANDS.items():
            description = (description or "").replace(f"python {script}", f"mttl {command}")
    parser = CommandParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"mttl {VERSION}")
    parser.add_argument(
        "--trust",
        action=_Trust,
        default=argparse.SUPPRESS,
        metavar="MODULE[,MODULE...]",
        help="import code of one's own that a run names: modules, packages or files",
    )
    return parser


def _called() -> str | None:
    """Return ``"mttl train"`` where that was called, or None for a script."""
    own = Path(sys.argv[0]).stem in ("mttl", "__main__") and sys.argv[1:2]
    return f"mttl {own[0]}" if own and own[0] in COMMANDS else None


def add_adapted(parser: CommandParser, *, required: bool = False) -> None:
    """Let a command line name tasks that were adapted from a run, and where a backbone is."""
    parser.group(READ).add_argument(
        "--adapted",
        action="extend",
        nargs="+",
        default=[],
        required=required,
        metavar="DIR",
        help="adapted tasks that were kept (pl_finetune.py --save)",
    )
    add_backbone(parser)


def add_address(group: "argparse._ArgumentGroup") -> None:
    """Let a command line say where a server listens."""
    group.add_argument("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
    help = "the port; 0 takes a free one (%(default)s)"
    group.add_argument("--port", type=_port, default=8000, help=help)


def add_backbone(parser: CommandParser) -> None:
    """Let a command line name the backbone of a run anew."""
    help = "where the pretrained backbone is now"
    parser.group(READ).add_argument("--backbone", metavar="DIR", help=help)


def add_no_probe(parser: CommandParser) -> None:
    """Let a command line leave out that what was written is loaded and answers."""
    help = "compare names and shapes alone: a model may not fit into memory twice"
    parser.group(WRITTEN).add_argument("--no-probe", action="store_true", help=help)


def add_config(parser: CommandParser) -> None:
    """Let a command line name configuration files and override their settings."""
    add = parser.group(READ).add_argument
    add(
        *("-c", "--config"),
        required=True,
        metavar="FILE[+FILE...]",
        help="YAML files, merged left to right; looked up here, in configs/, then in the package",
    )
    add_overrides(parser, "settings that override the files; may be repeated, the later wins")
    add(
        "--settings",
        nargs="?",
        action=_ShowSettings,
        default=argparse.SUPPRESS,
        metavar="SECTION",
        help="show what can be set, in one section or in all, and exit",
    )


class _Trust(argparse.Action):
    """Notes names in the environment, where processes that are started find them too."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        trust(values)


class _ShowSettings(argparse.Action):
    """Prints the settings of a section and leaves, as ``--help`` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        from mttl.config.reference import reference

        make_console().print(reference(values), markup=False)
        parser.exit()


def add_run(parser: CommandParser, *, tasks: str, out: str, required: bool = True) -> None:
    """Let a command line say which run is adapted to what.

    Args:
        parser: Of the command.
        tasks: ``"test"`` or ``"dev"``: the side of the partition that is taken by default.
        out: What goes into the folder of results, and where that is.
        required: Whether the command has nothing to do without a run.
    """
    add = parser.group(READ).add_argument
    add(
        "--from",
        dest="source",
        required=required,
        metavar="RUN",
        help="the folder of a trained run",
    )
    add("--tasks", default=tasks, help="test, dev, or names joined by commas (%(default)s)")
    add("--samples", metavar="N[,N...]", help="few-shot samples of every task (all)")
    add("--allow-seen", action="store_true", help="take tasks of training too")
    parser.group(WRITTEN).add_argument("--out", metavar="DIR", help=out)
    add_backbone(parser)


def add_overrides(parser: CommandParser, what: str) -> None:
    """Let a command line override settings by ``-k section.key=value …``, a flat list."""
    parser.group(READ).add_argument(
        *("-k", "--set"),
        dest="override",
        action="extend",
        nargs="+",
        default=[],
        metavar="section.key=value",
        help=what,
    )


def positive(text: str) -> int:
    """Read a number of at least 1 from the command line."""
    return _at_least(1, text)


def processes(text: str) -> int:
    """Read a number of processes from the command line: at least 1, and not more than start."""
    number = positive(text)
    if number > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"'{shown(text)}' must be at most {MOST_PROCESSES}: each is a process of its own"
        )
    return number


def natural(text: str) -> int:
    """Read a number of at least 0 from the command line."""
    return _at_least(0, text)


def _port(text: str) -> int:
    number = natural(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' must be at most 65535")
    return number


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"'{text[:40]}' must be a whole number of at least {least}, with at most 18 digits"
        )
    return int(text)
