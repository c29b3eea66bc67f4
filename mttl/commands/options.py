"""The options of commands: a parser with groups, and options that several commands share."""

import argparse
from pathlib import Path
from typing import Any

from mttl.adaptation.shard import Shard
from mttl.io.errors import ConfigError, TaskError
from mttl.plugins.classes import trust
from mttl.runtime.command import make_console
from mttl.runtime.version import VERSION

# Groups of options in the help of a command.
READ, WORK, WRITTEN = "what is read", "how it is done", "what is written"


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


def add_source(
    parser: CommandParser,
    *,
    dest: str = "source",
    required: bool = True,
    help: str = "the folder of a finished run",
) -> None:
    """Let a command line name a run: as the first argument, or with ``--from``."""
    group = parser.group(READ)
    group.add_argument(dest, nargs="?", default=argparse.SUPPRESS, metavar="RUN", help=help)
    group.add_argument("--from", dest=dest, metavar="RUN", help="the same")
    parser.needs_run = dest if required else ""


class Names(argparse.Action):
    """Reads names that blanks or commas separate, as one text with commas."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        """Join the names."""
        setattr(namespace, self.dest, ",".join(value.strip(", ") for value in values))


def add_adapted(parser: CommandParser, *, required: bool = False) -> None:
    """Let a command line name tasks that were adapted from a run, and where a backbone is."""
    parser.group(READ).add_argument(
        "--adapted",
        action="extend",
        nargs="+",
        default=[],
        required=required,
        metavar="DIR",
        help="adapted tasks that were kept (mttl adapt --save)",
    )
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


def add_no_probe(parser: CommandParser) -> None:
    """Let a command line skip loading and probing what was written."""
    help = "compare names and shapes alone: a model may not fit into memory twice"
    parser.group(WRITTEN).add_argument("--no-probe", action="store_true", help=help)


def add_config(parser: CommandParser, *, required: bool = True) -> None:
    """Let a command line name configuration files and override their settings."""
    add = parser.group(READ).add_argument
    add(
        *("-c", "--config"),
        required=required,
        metavar="FILE[+FILE...]",
        help="YAML files, merged left to right; looked up here, in configs/, then in the package"
        + ("" if required else " (RUN/config.yaml, onto which parts of one are merged)"),
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
    """Notes names in the environment, where child processes find them too."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        trust(values)


class _ShowSettings(argparse.Action):
    """Prints the settings of a section and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        from mttl.config.reference import reference

        make_console().print(reference(values), markup=False)
        parser.exit()


def add_run(parser: CommandParser, *, tasks: str, out: str, required: bool = True) -> None:
    """Let a command line name a run, and the tasks to which it is adapted."""
    add = parser.group(READ).add_argument
    add_source(parser, required=required)
    names = {"nargs": "+", "action": Names}
    add("--tasks", default=tasks, metavar="TASK", help="test, dev, or names (%(default)s)", **names)
    add("--samples", metavar="N", help="few-shot samples of every task (all)", **names)
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


def natural(text: str) -> int:
    """Read a number of at least 0 from the command line."""
    return _at_least(0, text)


def _port(text: str) -> int:
    number = natural(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' must be at most 65535")
    return number


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of at least {least}")
    return int(text)


def new_path(text: str | Path) -> Path:
    """Return the path of ``--out``, where nothing is yet."""
    if Path(text).exists():
        raise ConfigError(f"--out '{text}' exists already; name a new one, or remove it")
    return Path(text)


def add_shares(parser: CommandParser) -> None:
    """Let a command line share its jobs among processes, or run one part of them."""
    add = parser.group(WORK).add_argument
    add(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="processes that share the jobs, or those of --shard (%(default)s)",
    )
    add("--shard", type=_shard, default=Shard(), metavar="I/N", help="run the I-th of N parts only")


def _shard(text: str) -> Shard:
    """Read a part of the jobs."""
    number, _, n_shards = text.partition("/")
    if not (number.isdecimal() and n_shards.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' must have the form I/N, such as 1/4")
    try:
        return Shard(int(number), int(n_shards))
    except TaskError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
