"""The command ``mttl``: what pl_train.py and its like do, from any folder.

mttl train -c crossfit.yaml
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks third_past --save
mttl COMMAND --help

Configurations are looked up as given, in configs/ here, and among those of the package; runs go to
runs/ here.
"""

import importlib
import sys

from mttl.command import COMMAND_GROUPS, COMMANDS, exit_with, make_parser
from mttl.errors import ConfigError, nearest
from mttl.shipped_files import shipped_folder


def main(arguments: list[str] | None = None) -> int:
    """Hand over to a command; return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    name = given[0] if given else "--help"
    if name.startswith("-"):
        parser = make_parser(f"{__doc__}\n{listing()}", name="mttl")
        parser.usage = "mttl COMMAND ..."
        parser.parse_args(given or ["--help"])
    if name not in COMMANDS:
        raise ConfigError(
            f"there is no command '{name}'.{nearest(name, COMMANDS)} `mttl --help` lists them"
        )
    path = shipped_folder() / COMMANDS[name]
    sys.path.insert(0, str(path.parent))  # as Python does for a script: some share code beside them
    return importlib.import_module(path.stem).main(given[1:])


def listing() -> str:
    """Return the commands by groups, each with the first sentence of its file."""
    lines: list[str] = []
    for title, group in COMMAND_GROUPS.items():
        lines.append(f"{title}:")
        for name, script in group.items():
            with (shipped_folder() / script).open(encoding="utf-8") as file:
                sentence = file.readline().strip().removeprefix("r").strip('"')
            lines.append(f"  {name:<12}{sentence}")
    return "\n".join(lines)


def run() -> None:
    """Run the command in this process, and leave it."""
    exit_with(main)


if __name__ == "__main__":
    run()
