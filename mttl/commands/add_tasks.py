"""Add adapted tasks to the run that they were adapted from.

mttl add-tasks runs/crossfit --adapted runs/crossfit/models/past --out runs/more

The new folder is a run with all tasks; the old run is not changed.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.options import CommandParser, command
from mttl.io.errors import CheckpointError
from mttl.io.files import new_folder, write_table, write_text
from mttl.io.reading import read_table, read_text
from mttl.runtime.command import say

if TYPE_CHECKING:
    from mttl.checkpoints.run_folder import RunFolder


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    parser.add_adapted(required=True)
    parser.add_out(probe=True)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Add the tasks and write the new run."""
    check_named(options.run, options.adapted)
    from mttl.adaptation.add_tasks import add_tasks
    from mttl.assembly.model import load_run
    from mttl.checkpoints.run_folder import RunFolder
    from mttl.checkpoints.saved_inventory import read_inventory, write_inventory
    from mttl.merging.check_written import check_written, task_answers
    from mttl.training.report import write_routing

    run = read_inventory(options.run)
    adapted = [read_inventory(folder, options.run) for folder in options.adapted]
    with new_folder(options.out) as temporary:
        files = RunFolder(temporary)
        inventory = add_tasks(files.skills, run, adapted)
        write_inventory(inventory)
        answers = {}
        for folder in () if options.no_probe else (options.run, *options.adapted):
            source = None if folder == options.run else options.run
            built = load_run(folder, run=source, backbone=options.backbone)
            answers |= task_answers(built.model, built.tasks)
        copy_scores([RunFolder(part.folder.absolute().parent) for part in (run, *adapted)], files)
        built = load_run(temporary, backbone=options.backbone)
        check_written(temporary, built, answers)
        if groups := built.attachment.groups:
            write_routing(files.plots / "routing.npz", built.model.router, groups, built.tasks)
    n_tasks, n_skills = len(inventory.tasks), built.model.router.n_skills
    say(f"{n_tasks} tasks and {n_skills} skills are in {options.out}")


def copy_scores(parts: "Sequence[RunFolder]", new: "RunFolder") -> None:
    """Copy the run's configuration, and the scores of all tasks.

    Means are omitted because they cover fewer tasks.
    """
    if parts[0].config.is_file():
        write_text(new.config, read_text(parts[0].config, CheckpointError))
    from mttl.tasks.partition import MEAN

    tables = [part.results for part in parts if part.results.is_file()]
    read = [row for table in tables for row in read_table(table, CheckpointError, ["task"])]
    rows = [row for row in read if row["task"] != MEAN]
    if rows:
        write_table(new.results, list(rows[0]), rows)
