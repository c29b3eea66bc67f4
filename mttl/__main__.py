"""Modular multi-task learning from the command line.

mttl train -c crossfit.yaml
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks third_past --save
mttl COMMAND --help

Configurations are searched at the given path, in configs/ of the working directory, and in the
package. Runs are written to runs/ of the working directory.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from mttl.commands.command_names import COMMANDS, MORE
from mttl.commands.options import make_parser
from mttl.io.errors import ConfigError, nearest
from mttl.runtime.command import exit_with

ALL = COMMANDS | MORE


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0].startswith("-"):
        text = f"{__doc__}\ncommands:\n{listing(COMMANDS)}\n\nmore:\n{listing(MORE)}"
        parser = make_parser("", text)
        parser.usage = "mttl COMMAND ..."
        parser.parse_args(given or ["--help"])
    n_words = 2 if " ".join(given[:2]) in ALL else 1
    name = " ".join(given[:n_words])
    if name not in ALL:
        raise ConfigError(
            f"unknown command '{name}'.{nearest(name, ALL)} `mttl --help` lists all commands"
        )
    module = importlib.import_module(f"mttl.commands.{ALL[name]}")
    return module.main(given[n_words:])


def listing(commands: Mapping[str, str]) -> str:
    """Return a line per command: its name, and the first sentence of its module."""
    folder, lines = Path(__file__).parent / "commands", []
    for name, module in commands.items():
        with (folder / f"{module}.py").open(encoding="utf-8") as file:
            sentence = file.readline().strip().removeprefix("r").strip('"')
        lines.append(f"  {name:<14}{sentence}")
    return "\n".join(lines)


def run() -> None:
    """Run the command in this process, and exit with its status."""
    exit_with(main)


if __name__ == "__main__":
    run()
