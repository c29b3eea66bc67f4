"""List the runs of a folder with their scores, sizes and status.

mttl list
mttl list runs/compare

Unfinished runs are listed with the last logged step. `mttl show RUN` shows one run.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from mttl.commands.options import CommandParser, command
from mttl.commands.show import mean_scores, method_of, read_settings, size_of, status_of
from mttl.io.errors import ConfigError, MttlError
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable


def _declare(parser: CommandParser) -> None:
    help = "folder of runs, searched with its subfolders (%(default)s)"
    parser.read.add_argument("folder", nargs="?", default="runs", metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print a row per run."""
    root = Path(options.folder)
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; name the folder of the runs (run.dir)")
    table = TextTable(f"Runs in {root}").words("run", "method", "mean scores (%)")
    table.numbers("MB").words("status")
    for run in _runs(root):
        name = str(run.relative_to(root)) if run != root else run.name
        try:
            settings = read_settings(run)
            cells = method_of(settings), mean_scores(run), size_of(run), status_of(run, settings)
        except MttlError as error:
            cells = "", "", size_of(run), f"damaged: {error}"
        table.add(name, *cells)
    console = make_console()
    console.print(table if table.rows else f"There are no runs in '{root}'.")


def _runs(folder: Path) -> Iterator[Path]:
    """Yield the folders with a config.yaml; folders inside a run are part of it."""
    if (folder / "config.yaml").is_file():
        yield folder
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _runs(Path(entry.path))
