"""List the runs of a folder with their scores, sizes and status.

mttl list
mttl list runs/compare

Unfinished runs are listed with the last logged step. `mttl show RUN` shows one run.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from mttl.analysis.saved_scores import saved_scores
from mttl.checkpoints.run_folder import settings_of
from mttl.commands import show
from mttl.commands.options import CommandParser, command
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
    table = TextTable(f"Runs in {root}", digits=1).words("run", "method", "mean scores (%)")
    table.numbers("MB").words("status")
    for run in _runs(root):
        try:
            settings = settings_of(run)
            rows = [row for row in saved_scores(run / "results.csv") if row.task == "mean"]
            means = [row for row in rows if row.metric in ("mean", "success")]
            scores = ", ".join(f"{row.split} {row.percent:.1f}" for row in means)
            method, status = show.method_of(settings), show.status_of(run, settings)
        except MttlError as error:
            method, scores, status = "", "", f"damaged: {error}"
        table.add(run.relative_to(root), method, scores, show.megabytes(run), status)
    make_console().print(table if table.rows else f"There are no runs in '{root}'.")


def _runs(folder: Path) -> Iterator[Path]:
    """Yield the folders with a config.yaml; folders inside a run are part of it."""
    if (folder / "config.yaml").is_file():
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _runs(path)
