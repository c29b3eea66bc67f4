"""Commands and their options: a parser with groups, and options that several commands share."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mttl.adaptation.shard import Shard
from mttl.commands.command_names import COMMANDS, MORE
from mttl.plugins.classes import trust
from mttl.runtime.command import make_console
from mttl.runtime.version import VERSION

NAMES = {module: name for name, module in (COMMANDS | MORE).items()}


class _Trust(argparse.Action):
    """Notes names in the environment, where child processes find them too."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        trust(values)


class _ShowSettings(argparse.Action):
    """Prints the settings of a section and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        from mttl.config.reference import reference

        make_console().print(reference(values), markup=False)
        parser.exit()


class _Names(argparse.Action):
    """Reads names that blanks or commas separate, as one text with commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        setattr(namespace, self.dest, ",".join(value.strip(", ") for value in values))


def _new_path(text: str) -> Path:
    if Path(text).exists():
        raise argparse.ArgumentTypeError(f"'{text}' exists already; name a new one, or remove it")
    return Path(text)


def whole(least: int, most: int = 0) -> Callable[[str], int]:
    """Return what reads a whole number within bounds from the command line; 0 is no upper one."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most and int(text) > most):
            end = f" and at most {most}" if most else ""
            told = f"'{text[:40]}' must be a whole number of at least {least}{end}"
            raise argparse.ArgumentTypeError(told)
        return int(text)

    return read


def _shard(text: str) -> Shard:
    try:
        number, n_shards = map(int, text.split("/"))
        return Shard(number, n_shards)
    except ValueError as error:
        told = f"'{text}' must have the form I/N, such as 1/4, with I up to N"
        raise argparse.ArgumentTypeError(told) from error


positive, natural, seed = whole(1), whole(0), whole(0, 2**32 - 1)
# Settings of options that are numbers, or several names.
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}
NATURAL: dict[str, Any] = {"type": natural, "metavar": "N"}
LIST: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}


class CommandParser(argparse.ArgumentParser):
    """A command line whose help shows options in groups; `add_…` is for what commands share."""

    def group(self, title: str) -> "argparse._ArgumentGroup":
        """Return the group of options with a title, which is made when it is first asked for."""
        there = (group for group in self._action_groups if group.title == title)
        return next(there, None) or self.add_argument_group(title)

    @property
    def read(self) -> "argparse._ArgumentGroup":
        """The options that say what is read."""
        return self.group("what is read")

    @property
    def work(self) -> "argparse._ArgumentGroup":
        """The options that say how it is done."""
        return self.group("how it is done")

    @property
    def written(self) -> "argparse._ArgumentGroup":
        """The options that say what is written."""
        return self.group("what is written")

    def add_source(self, dest: str = "source", *, required: bool = True) -> None:
        """Name a run: as the first argument, or with ``--from``."""
        help = "the folder of a finished run"
        add = self.read.add_mutually_exclusive_group(required=required).add_argument
        add(dest, nargs="?", default=argparse.SUPPRESS, metavar="RUN", help=help)
        add("--from", dest=dest, metavar="RUN", help="the same")

    def add_adapted(self, *, required: bool = False) -> None:
        """Name tasks that were adapted from a run, and where a backbone is."""
        help = "adapted tasks that were kept (mttl adapt --save)"
        add = self.read.add_argument
        add("--adapted", **LIST, required=required, metavar="DIR", help=help)
        self.add_backbone()

    def add_address(self, title: str) -> None:
        """Say where a server listens."""
        add = self.group(title).add_argument
        add("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
        help = "the port; 0 takes a free one (%(default)s)"
        add("--port", type=whole(0, 65535), default=8000, help=help)

    def add_backbone(self) -> None:
        """Say where the backbone of a run is now."""
        help = "where the pretrained backbone is now"
        self.read.add_argument("--backbone", metavar="DIR", help=help)

    def add_model(self) -> None:
        """Name a plain model, and say how it is asked a task of a gym."""
        add = self.read.add_argument
        add("--model", required=True, help="name on the hub, or a folder")
        add("--tokenizer", help="another than the model's own: a name, a folder, or byte")
        add("--gym", default="data/lexical", help="folder of the gym (%(default)s)")
        add("--sample", type=int, default=100, help="few-shot sample of the task (%(default)s)")
        add("--prefix", action="store_true", help="put [task] before every input")
        add("--max-length", type=int, default=256, help="most tokens of an input (%(default)s)")
        help = "most tokens of an answer (%(default)s)"
        add("--max-output-length", type=int, default=64, help=help)

    def add_out(self, help: str = "where to write; a new folder", **settings: Any) -> None:
        """Say what is written: a file or folder that must not exist."""
        given = {"metavar": "DIR", "required": True, "type": _new_path} | settings
        self.written.add_argument("--out", help=help, **given)

    def add_no_probe(self) -> None:
        """Skip loading and probing what was written."""
        help = "compare names and shapes alone: a model may not fit into memory twice"
        self.written.add_argument("--no-probe", action="store_true", help=help)

    def add_config(self, *, required: bool = True) -> None:
        """Name configuration files and override their settings."""
        add = self.read.add_argument
        help = "YAML files, merged left to right; looked up here, in configs/, then in the package"
        help += "" if required else " (RUN/config.yaml, onto which parts of one are merged)"
        add(*("-c", "--config"), required=required, metavar="FILE[+FILE...]", help=help)
        self.add_overrides("settings that override the files; may be repeated, the later wins")
        shown: dict[str, Any] = {"action": _ShowSettings, "default": argparse.SUPPRESS}
        shown["help"] = "show what can be set, in one section or in all, and exit"
        add("--settings", nargs="?", metavar="SECTION", **shown)

    def add_overrides(self, help: str) -> None:
        """Override settings by ``-k section.key=value …``, a flat list."""
        add = self.read.add_argument
        add(*("-k", "--set"), dest="override", **LIST, metavar="section.key=value", help=help)

    def add_run(self, *, tasks: str, out: str, required: bool = True) -> None:
        """Name a run, the tasks to which it is adapted, and a part of the jobs."""
        self.add_source(required=required)
        add, names = self.read.add_argument, {"nargs": "+", "action": _Names}
        help = "test, dev, or names (%(default)s)"
        add("--tasks", default=tasks, metavar="TASK", help=help, **names)
        add("--samples", metavar="N", help="few-shot samples of every task (all)", **names)
        add("--allow-seen", action="store_true", help="take tasks of training too")
        self.add_backbone()
        add, one = self.work.add_argument, Shard()
        help = "processes that share the jobs, or those of --shard (%(default)s)"
        add("--workers", **POSITIVE, default=1, help=help)
        add("--shard", type=_shard, default=one, metavar="I/N", help="run the I-th of N parts only")
        self.written.add_argument("--out", metavar="DIR", help=out)


Declare = Callable[[CommandParser], object]
Work = Callable[[argparse.Namespace], int | None]


@dataclass(frozen=True)
class Command:
    """A command of ``mttl``: called with its arguments, it does its work and returns its status.

    One function declares its options, the other does the work; it returns a status, or None for 0.
    """

    declare: Declare
    work: Work

    def parse(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """Read a command line, by default that of this process; the words are `arguments`."""
        given = sys.argv[1:] if arguments is None else arguments
        file = self.work.__globals__  # type: ignore[attr-defined]
        parser = make_parser(NAMES[file["__name__"].rpartition(".")[2]], file["__doc__"])
        self.declare(parser)
        return parser.parse_args(given, argparse.Namespace(arguments=given))

    def __call__(self, arguments: list[str] | None = None) -> int:
        """Read the command line, and work."""
        return self.work(self.parse(arguments)) or 0


def command(declare: Declare) -> Callable[[Work], Command]:
    """Make a function the `Command` of its file, with the options that another adds; decorator."""
    return partial(Command, declare)


def make_parser(name: str, description: str | None) -> CommandParser:
    """Return the parser of a command, as ``"adapt"``, or of ``mttl`` itself."""
    raw = argparse.RawDescriptionHelpFormatter
    prog = f"mttl {name}".rstrip()
    parser = CommandParser(prog=prog, description=description, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"mttl {VERSION}")
    help = "import custom code that a run names: modules, packages or files"
    trusted: dict[str, Any] = {"action": _Trust, "default": argparse.SUPPRESS, "help": help}
    parser.add_argument("--trust", metavar="MODULE[,MODULE...]", **trusted)
    return parser
