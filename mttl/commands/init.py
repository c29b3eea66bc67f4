"""Propose a task file for a folder of data.

    mttl init data > tasks.yaml
    mttl train --tasks tasks.yaml --backbone DIR

Reads CSV, TSV, JSON Lines and Parquet files, and folders of `save_to_disk`. Paths in the output are
relative to the working directory, in which the file is to be saved.
"""

import argparse
import sys

from mttl.commands.options import CommandParser, command


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("folder", metavar="DIR", help="folder of the data")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print the proposal."""
    from mttl.tasks.propose import propose

    text = propose(options.folder)
    # YAML is UTF-8, whatever the terminal is.
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(
        f"# Proposed by mttl init {options.folder}. Check each task, then run:\n"
        "#   mttl train --tasks tasks.yaml --backbone DIR\n"
        "# `side: test` keeps a task for mttl adapt. All keys: docs/reference/task_files.md\n"
        + text
    )
