"""Commands and their options: a parser with groups, and options that several commands share."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mttl.adaptation.shard import Shard
from mttl.commands.command_names import COMMANDS, MORE
from mttl.io.errors import ConfigError, TaskError
from mttl.plugins.classes import trust
from mttl.runtime.command import make_console
from mttl.runtime.version import VERSION

# Groups of options in the help of a command.
READ, WORK, WRITTEN = "what is read", "how it is done", "what is written"
NAMES = {module: name for name, module in (COMMANDS | MORE).items()}


class CommandParser(argparse.ArgumentParser):
    """A command line whose help shows options in groups.

    Attributes:
        needs_run: The name under which a run has to be given, or empty.
    """

    needs_run = ""

    def group(self, title: str) -> "argparse._ArgumentGroup":
        """Return the group of options with a title, which is made when it is first asked for."""
        there = (group for group in self._action_groups if group.title == title)
        return next(there, None) or self.add_argument_group(title)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read a command line, and see that it names a run where one is needed."""
        found = super().parse_args(args, namespace)
        if self.needs_run and getattr(found, self.needs_run) is None:
            self.error("the following arguments are required: RUN")
        return found

    def format_help(self) -> str:
        """Return the help, in which what is written stands last."""
        self._action_groups.sort(key=lambda group: group.title == WRITTEN)
        return super().format_help()


Declare = Callable[[CommandParser], object]
Work = Callable[[argparse.Namespace], int | None]


class Command:
    """A command of ``mttl``: called with its arguments, it does its work and returns its status.

    Args:
        declare: Adds its options to a parser.
        work: What it does with the options; returns an exit status, or None for 0.
    """

    def __init__(self, declare: Declare, work: Work) -> None:
        self._declare, self._work = declare, work

    def parser(self) -> CommandParser:
        """Return the parser of its command line."""
        file = self._work.__globals__  # type: ignore[attr-defined]
        parser = make_parser(NAMES[file["__name__"].rpartition(".")[2]], file["__doc__"])
        self._declare(parser)
        return parser

    def parse(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """Read a command line, by default that of this process; the words are `arguments`."""
        given = sys.argv[1:] if arguments is None else arguments
        return self.parser().parse_args(given, argparse.Namespace(arguments=given))

    def __call__(self, arguments: list[str] | None = None) -> int:
        """Read the command line, and work."""
        return self._work(self.parse(arguments)) or 0


def command(declare: Declare) -> Callable[[Work], Command]:
    """Make a function the `Command` of its file, with the options that another adds; decorator."""
    return lambda work: Command(declare, work)


def make_parser(name: str, description: str | None) -> CommandParser:
    """Return the parser of a command, as ``"adapt"``, or of ``mttl`` itself."""
    parser = CommandParser(
        prog=f"mttl {name}".rstrip(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mttl {VERSION}")
    parser.add_argument(
        "--trust",
        action=_Trust,
        default=argparse.SUPPRESS,
        metavar="MODULE[,MODULE...]",
        help="import custom code that a run names: modules, packages or files",
    )
    return parser


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


class _NewPath(argparse.Action):
    """Reads the name of a file or folder that does not exist yet."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        if Path(values).exists():
            raise ConfigError(f"--out '{values}' exists already; name a new one, or remove it")
        setattr(namespace, self.dest, Path(values))


def positive(text: str) -> int:
    """Read a number of at least 1 from the command line."""
    return _between(1, text)


def natural(text: str) -> int:
    """Read a number of at least 0 from the command line."""
    return _between(0, text)


def _between(least: int, text: str, most: int | None = None) -> int:
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        end = "" if most is None else f" and at most {most}"
        raise argparse.ArgumentTypeError(
            f"'{text[:40]}' must be a whole number of at least {least}{end}"
        )
    return int(text)


def _port(text: str) -> int:
    return _between(0, text, 65535)


def _shard(text: str) -> Shard:
    number, _, n_shards = text.partition("/")
    if not (number.isdecimal() and n_shards.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' must have the form I/N, such as 1/4")
    try:
        return Shard(int(number), int(n_shards))
    except TaskError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# Settings of options that are numbers, or several names.
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}
NATURAL: dict[str, Any] = {"type": natural, "metavar": "N"}
LIST: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}


def add_source(
    parser: CommandParser,
    *,
    dest: str = "source",
    required: bool = True,
    help: str = "the folder of a finished run",
) -> None:
    """Let a command line name a run: as the first argument, or with ``--from``."""
    add = parser.group(READ).add_argument
    add(dest, nargs="?", default=argparse.SUPPRESS, metavar="RUN", help=help)
    add("--from", dest=dest, metavar="RUN", help="the same")
    parser.needs_run = dest if required else ""


def add_adapted(parser: CommandParser, *, required: bool = False) -> None:
    """Let a command line name tasks that were adapted from a run, and where a backbone is."""
    help = "adapted tasks that were kept (mttl adapt --save)"
    add = parser.group(READ).add_argument
    add("--adapted", **LIST, required=required, metavar="DIR", help=help)
    add_backbone(parser)


def add_address(group: "argparse._ArgumentGroup") -> None:
    """Let a command line say where a server listens."""
    group.add_argument("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
    help = "the port; 0 takes a free one (%(default)s)"
    group.add_argument("--port", type=_port, default=8000, help=help)


def add_backbone(parser: CommandParser) -> None:
    """Let a command line say where the backbone of a run is now."""
    help = "where the pretrained backbone is now"
    parser.group(READ).add_argument("--backbone", metavar="DIR", help=help)


def add_model(parser: CommandParser) -> None:
    """Let a command line name a plain model, and say how it is asked a task of a gym."""
    add = parser.group(READ).add_argument
    add("--model", required=True, help="name on the hub, or a folder")
    add("--tokenizer", help="another than the model's own: a name, a folder, or byte")
    add("--gym", default="data/lexical", help="folder of the gym (%(default)s)")
    add("--sample", type=int, default=100, help="few-shot sample of the task (%(default)s)")
    add("--prefix", action="store_true", help="put [task] before every input")
    add("--max-length", type=int, default=256, help="most tokens of an input (%(default)s)")
    add("--max-output-length", type=int, default=64, help="most tokens of an answer (%(default)s)")


def add_out(
    parser: CommandParser,
    help: str = "where to write; a new folder",
    metavar: str = "DIR",
    *,
    required: bool = True,
) -> None:
    """Let a command line say what is written: a file or folder that must not exist."""
    parser.group(WRITTEN).add_argument(
        "--out", action=_NewPath, required=required, metavar=metavar, help=help
    )


def add_no_probe(parser: CommandParser) -> None:
    """Let a command line skip loading and probing what was written."""
    help = "compare names and shapes alone: a model may not fit into memory twice"
    parser.group(WRITTEN).add_argument("--no-probe", action="store_true", help=help)


def add_config(parser: CommandParser, *, required: bool = True) -> None:
    """Let a command line name configuration files and override their settings."""
    add = parser.group(READ).add_argument
    help = "YAML files, merged left to right; looked up here, in configs/, then in the package"
    help += "" if required else " (RUN/config.yaml, onto which parts of one are merged)"
    add(*("-c", "--config"), required=required, metavar="FILE[+FILE...]", help=help)
    add_overrides(parser, "settings that override the files; may be repeated, the later wins")
    add(
        "--settings",
        nargs="?",
        action=_ShowSettings,
        default=argparse.SUPPRESS,
        metavar="SECTION",
        help="show what can be set, in one section or in all, and exit",
    )


def add_overrides(parser: CommandParser, help: str) -> None:
    """Let a command line override settings by ``-k section.key=value …``, a flat list."""
    add = parser.group(READ).add_argument
    add(*("-k", "--set"), dest="override", **LIST, metavar="section.key=value", help=help)


def add_run(parser: CommandParser, *, tasks: str, out: str, required: bool = True) -> None:
    """Let a command line name a run, the tasks to which it is adapted, and a part of the jobs."""
    add = parser.group(READ).add_argument
    add_source(parser, required=required)
    names: dict[str, Any] = {"nargs": "+", "action": _Names}
    add("--tasks", default=tasks, metavar="TASK", help="test, dev, or names (%(default)s)", **names)
    add("--samples", metavar="N", help="few-shot samples of every task (all)", **names)
    add("--allow-seen", action="store_true", help="take tasks of training too")
    add_backbone(parser)
    add = parser.group(WORK).add_argument
    help = "processes that share the jobs, or those of --shard (%(default)s)"
    add("--workers", **POSITIVE, default=1, help=help)
    add("--shard", type=_shard, default=Shard(), metavar="I/N", help="run the I-th of N parts only")
    parser.group(WRITTEN).add_argument("--out", metavar="DIR", help=out)
