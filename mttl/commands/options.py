"""Command-line parser with groups, and options shared by several commands."""

import argparse
import json
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
    """Adds trusted modules to the environment, which child processes inherit."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        trust(values)


class _ShowSettings(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        from mttl.config.reference import reference

        make_console().print(reference(values), markup=False)
        parser.exit()


class _Names(argparse.Action):
    """Joins names separated by blanks or commas into one comma-separated text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        setattr(namespace, self.dest, ",".join(value.strip(", ") for value in values))


def _new_path(text: str) -> Path:
    if Path(text).exists():
        words = f"'{text}' already exists; choose another path or remove it"
        raise argparse.ArgumentTypeError(words)
    return Path(text)


def whole(least: int, most: int = 0) -> Callable[[str], int]:
    """Return a parser of integers within bounds; ``most=0`` means no upper bound."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most and int(text) > most):
            end = f" and at most {most}" if most else ""
            words = f"'{text[:40]}' must be a whole number of at least {least}{end}"
            raise argparse.ArgumentTypeError(words)
        return int(text)

    return read


def _shard(text: str) -> Shard:
    try:
        number, n_shards = map(int, text.split("/"))
        return Shard(number, n_shards)
    except ValueError as error:
        words = f"'{text}' must have the form I/N with I from 1 to N, such as 1/4"
        raise argparse.ArgumentTypeError(words) from error


positive, natural, seed = whole(1), whole(0), whole(0, 2**32 - 1)
# Arguments of options for numbers, or for several names.
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}
NATURAL: dict[str, Any] = {"type": natural, "metavar": "N"}
LIST: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}


class CommandParser(argparse.ArgumentParser):
    """Argument parser with option groups; the ``add_…`` methods add shared options."""

    def group(self, title: str) -> "argparse._ArgumentGroup":
        """Return the option group with a title, creating it if necessary."""
        there = (group for group in self._action_groups if group.title == title)
        return next(there, None) or self.add_argument_group(title)

    # Groups of input, processing and output options.
    read = property(lambda self: self.group("input"))
    work = property(lambda self: self.group("processing"))
    written = property(lambda self: self.group("output"))

    def add_source(self, dest: str = "source", *, required: bool = True) -> None:
        """Add a run as the first argument or as ``--from``."""
        help = "folder of a finished run"
        add = self.read.add_mutually_exclusive_group(required=required).add_argument
        add(dest, nargs="?", default=argparse.SUPPRESS, metavar="RUN", help=help)
        help = "folder of a finished run, instead of the first argument"
        add("--from", dest=dest, metavar="RUN", help=help)

    def add_adapted(self, *, required: bool = False, more: str = "") -> None:
        """Add ``--adapted`` for adapted tasks of a run, and ``--backbone``."""
        help = f"folders of adapted tasks (from mttl adapt --save){more}"
        self.read.add_argument("--adapted", **LIST, required=required, metavar="DIR", help=help)
        self.add_backbone()

    def add_address(self, title: str) -> None:
        """Add the host and port of a server."""
        add = self.group(title).add_argument
        add("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
        help = "port; 0 chooses a free one (%(default)s)"
        add("--port", type=whole(0, 65535), default=8000, help=help)

    def add_backbone(self) -> None:
        """Add ``--backbone``, the current path of a run's backbone."""
        help = "current folder of the pretrained backbone, if it was moved"
        self.read.add_argument("--backbone", metavar="DIR", help=help)

    def add_model(self) -> None:
        """Add a plain model, and how its inputs are formatted."""
        add = self.read.add_argument
        add("--model", required=True, help="name on the hub, or a folder")
        add("--tokenizer", help="tokenizer: a name, a folder, or byte (the model's)")
        add("--gym", default="data/lexical", help="folder of the tasks (%(default)s)")
        add("--sample", type=int, default=100, help="few-shot sample, by its number (%(default)s)")
        add("--prefix", action="store_true", help="add the prefix [task] to every input")
        add("--max-length", type=int, default=256, help="maximum tokens of an input (%(default)s)")
        help = "maximum tokens of an answer (%(default)s)"
        add("--max-output-length", type=int, default=64, help=help)

    def add_out(
        self, help: str = "output folder; must not exist", *, probe: bool = False, **settings: Any
    ) -> None:
        """Add ``--out``, which must not exist; with ``probe`` also ``--no-probe``."""
        given = {"metavar": "DIR", "required": True, "type": _new_path} | settings
        self.written.add_argument("--out", help=help, **given)
        if probe:
            self.add_no_probe()

    def add_no_probe(self) -> None:
        """Add ``--no-probe``, which skips loading and testing the output."""
        help = "check only names and shapes of the output; needs less memory than comparing answers"
        self.written.add_argument("--no-probe", action="store_true", help=help)

    def add_config(self, *, required: bool = True, default: str = "") -> None:
        """Add configuration files and overrides; ``default`` names the file without the option."""
        add = self.read.add_argument
        help = "YAML files, merged left to right; searched here, in configs/, and in the package"
        default = default or "RUN/config.yaml; files with some sections only extend it"
        help += "" if required else f" ({default})"
        add(*("-c", "--config"), required=required, metavar="FILE[+FILE...]", help=help)
        self.add_overrides("settings that override the files; may be repeated")
        shown: dict[str, Any] = {"action": _ShowSettings, "default": argparse.SUPPRESS}
        shown["help"] = "print all settings, or those of one section, and exit"
        add("--settings", nargs="?", metavar="SECTION", **shown)

    def add_overrides(self, help: str) -> None:
        """Add ``-k section.key=value …`` as a flat list of overrides."""
        add = self.read.add_argument
        add(*("-k", "--set"), dest="override", **LIST, metavar="section.key=value", help=help)

    def add_run(self, *, tasks: str, out: str, required: bool = True) -> None:
        """Add the run, the new tasks, and the part of the jobs to run."""
        self.add_source(required=required)
        add, names = self.read.add_argument, {"nargs": "+", "action": _Names}
        help = "new tasks: test or dev of the partition, names, or a task file (%(default)s)"
        add("--tasks", default=tasks, metavar="TASK", help=help, **names)
        add("--samples", metavar="N", help="few-shot samples per task (all)", **names)
        add("--allow-seen", action="store_true", help="allow training tasks as new tasks")
        self.add_backbone()
        add, one = self.work.add_argument, Shard()
        help = "processes that share the jobs (of --shard, if given) (%(default)s)"
        add("--workers", **POSITIVE, default=1, help=help)
        add("--shard", type=_shard, default=one, metavar="I/N", help="run only part I of N")
        self.written.add_argument("--out", metavar="DIR", help=out)


def task_overrides(file: str | None) -> list[str]:
    """Return the settings of a file of custom tasks, as overrides."""
    if file is None:
        return []
    return [f"data.tasks={json.dumps(file)}", "data.dir=null", "data.partition=auto"]


Declare = Callable[[CommandParser], object]
Work = Callable[[argparse.Namespace], int | None]


@dataclass(frozen=True)
class Command:
    """A command of ``mttl``: an object that parses arguments, runs, and returns an exit status.

    ``declare`` adds the options; ``work`` runs and returns the status, or None for 0.
    """

    declare: Declare
    work: Work

    def parse(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """Return the parsed command line, with its words as `arguments`; by default `sys.argv`."""
        given = sys.argv[1:] if arguments is None else arguments
        file = self.work.__globals__  # type: ignore[attr-defined]
        parser = make_parser(NAMES[file["__name__"].rpartition(".")[2]], file["__doc__"])
        self.declare(parser)
        options = parser.parse_args(given, argparse.Namespace(arguments=given))
        if str(getattr(options, "out", None)) == "-":
            parser.error("argument --out: '-' must be a path; mttl predict prints without --out")
        return options

    def __call__(self, arguments: list[str] | None = None) -> int:
        """Parse the command line, run, and return the exit status."""
        return self.work(self.parse(arguments)) or 0


def command(declare: Declare) -> Callable[[Work], Command]:
    """Turn a function into the `Command` of its module; decorator."""
    return partial(Command, declare)


def make_parser(name: str, description: str | None) -> CommandParser:
    """Return the parser of a command such as ``"adapt"``, or of ``mttl`` itself."""
    raw = argparse.RawDescriptionHelpFormatter
    prog = f"mttl {name}".rstrip()
    parser = CommandParser(prog=prog, description=description, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"mttl {VERSION}")
    help = "modules, packages or files with plug-in classes that may be imported"
    trusted: dict[str, Any] = {"action": _Trust, "default": argparse.SUPPRESS, "help": help}
    parser.add_argument("--trust", metavar="MODULE[,MODULE...]", **trusted)
    return parser
