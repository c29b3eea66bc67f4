"""Build CrossFit's few-shot tasks from their source data and verify the files.

    mttl build                                   # all 160 tasks, from the Hugging Face hub
    mttl build --partition random --workers 8
    mttl build --tasks glue-rte boolq --samples 100 13
    mttl build --raw DIR                         # from JSON Lines in a folder
    mttl build --config my_tasks.yaml            # custom tasks
    mttl build --collection t0 --raw DIR         # T0, or sni: Super-NaturalInstructions
    mttl build --status                          # show which files exist

Complete tasks are not rebuilt; a failed task does not stop the others. Exit codes: 0 success, 1
`--verify` found missing or different files, 2 a task is unavailable or failed, or invalid options,
130 after Ctrl-C. Finished tasks are always kept; files are written atomically.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from mttl.commands.options import POSITIVE, CommandParser, command, seed
from mttl.io.errors import TaskError, nearest
from mttl.io.files import locked
from mttl.runtime.command import FAULT, SUCCESS, USER_MISTAKE, make_console, say
from mttl.runtime.progress_bar import counting

if TYPE_CHECKING:
    from mttl.tasks.building.build_gym import Outcome
    from mttl.tasks.task import Task

COMPLETE = ("verified", "built", "differs")
COLOURS = {"verified": "green", "built": "green", "differs": "yellow"}


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("--tasks", nargs="+", metavar="TASK", help="tasks to build (all)")
    add("--partition", metavar="NAME", help="tasks of a partition: a name, or a JSON file")
    kind = parser.read.add_mutually_exclusive_group().add_argument
    kind("--config", metavar="FILE", help="YAML file of custom tasks")
    help = "tasks of a published collection: t0, or sni (Super-NaturalInstructions)"
    kind("--collection", choices=("sni", "t0"), help=help)
    add("--samples", type=seed, nargs="+", metavar="N", help="few-shot samples (all five)")
    help = "read DIR/<data set>__<configuration>/<split>.jsonl[.gz] instead of the hub; "
    help += "with --collection, its downloaded copy"
    add("--raw", type=Path, metavar="DIR", help=help)
    work = parser.work
    n_workers = min(4, os.cpu_count() or 1)
    work.add_argument("--workers", **POSITIVE, default=n_workers, help="processes (%(default)s)")
    add = work.add_mutually_exclusive_group().add_argument
    help = "do not build; compare existing files with the published checksums"
    add("--verify", action="store_true", help=help)
    add("--status", action="store_true", help="do not build; show which files exist")
    add = parser.written.add_argument
    help = "folder of the tasks (data/crossfit, or data/ and the collection)"
    add("--out", type=Path, metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> int:
    """Build, verify or list tasks, and print a table."""
    from mttl.io.record import check
    from mttl.tasks.building.build_gym import check_task
    from mttl.tasks.building.hub import hub_in_reach
    from mttl.tasks.partition import SIDES, Partition
    from mttl.tasks.sampling import SAMPLES

    raw, name = options.raw, options.collection
    out = options.out or Path("data", name or "crossfit")
    samples: list[int] = list(dict.fromkeys(options.samples or SAMPLES))
    if raw is not None and not raw.is_dir():
        raise TaskError(f"--raw: the folder '{raw}' does not exist")
    if name is not None and raw is None:
        raise TaskError(f"--collection {name}: name the folder of its downloaded copy with --raw")
    listed = resolve_name(f"mttl.tasks.building.{name}:tasks")(raw) if name is not None else []
    tasks = choose(options, listed)
    if options.status:
        print_status(tasks, out, samples)
        return SUCCESS
    if options.verify:
        outcomes = [check_task(task, out, samples=samples) for task in tasks]
        print_outcomes(outcomes)
        return SUCCESS if all(o.status in ("verified", "built") for o in outcomes) else FAULT
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"  # those of workers would overlap
    names = [task.source.path for task in tasks if not task.source.unavailable]
    remote = raw is None and any(name and not Path(name).is_dir() for name in names)
    if remote and "HF_HUB_OFFLINE" not in os.environ and not hub_in_reach():
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub, also in workers
        say("the hub is unreachable; only downloaded data can be used", stderr=True)
    refusal = TaskError(f"another mttl build is writing to '{out}'; wait for it or stop it.")
    with locked(out / ".lock", refusal):
        if name is not None:
            sides = {side: [one.name for one in listed if one.side == side] for side in SIDES}
            path = out / "partition.json"
            check(Partition, sides, str(path), TaskError).write(path)
        outcomes = build(tasks, out, samples, raw, options.workers)
    return SUCCESS if all(outcome.status in COMPLETE for outcome in outcomes) else USER_MISTAKE


def choose(options: argparse.Namespace, listed: "Sequence[Task]") -> "list[Task]":
    """Return the tasks that the options name; by default all of CrossFit's or all ``listed``.

    A partition is a file, or the name of one under ``configs/partitions``.
    """
    from mttl.config.load import find_file
    from mttl.tasks.partition import Partition
    from mttl.tasks.task_file import crossfit, load_tasks

    config, partition = options.config, options.partition
    own = {one.name: one for one in listed} if config is None else load_tasks(config)
    known = own if listed else {**crossfit(), **own}
    wanted = list(options.tasks or ())
    if partition is not None:
        file = partition if partition.endswith(".json") else f"partitions/{partition}.json"
        sides = Partition.read(find_file(file, setting="--partition"))
        wanted += [*sides.train, *sides.dev, *sides.test]
    if not wanted:
        return list((own or known).values())
    for name in wanted:
        if name not in known:
            raise TaskError(f"unknown task '{name}'.{nearest(name, known)}")
    more = () if options.tasks or (listed and wanted) else own
    return [known[name] for name in dict.fromkeys([*wanted, *more])]


def build(
    tasks: "list[Task]", out: Path, samples: list[int], raw: Path | None, n_workers: int
) -> "list[Outcome]":
    """Build tasks with a progress bar, and print their status even after an interrupt."""
    from mttl.tasks.building.build_gym import build_many
    from mttl.tasks.sample_files import update_task_table

    console = make_console(stderr=True)
    outcomes: list[Outcome] = []
    try:
        with counting(console, "building", len(tasks)) as count:
            for outcome in build_many(tasks, out, samples=samples, raw=raw, n_workers=n_workers):
                outcomes.append(outcome)
                count.advance()
                if not console.is_terminal:
                    console.print(f"{outcome.task}: {outcome.status}", markup=False)
    finally:
        held = {outcome.task for outcome in outcomes if outcome.status in COMPLETE}
        if held:
            update_task_table(out, [task for task in tasks if task.name in held])
        if outcomes:
            print_outcomes(sorted(outcomes, key=lambda outcome: outcome.task))
    return outcomes


def print_outcomes(outcomes: "Sequence[Outcome]") -> None:
    """Print the status of each task, and counts by status."""
    table = Table("task", "status", "")
    details = []
    for outcome in outcomes:
        colour = COLOURS.get(outcome.status, "red")
        detail = "; ".join(filter(None, ["existed" * outcome.skipped, outcome.detail]))
        if "://" in detail:  # a cell would break an address
            details.append(f"{outcome.task}: {detail}")
            detail = "see below"
        table.add_row(outcome.task, f"[{colour}]{outcome.status}", escape(detail))
    console = make_console()
    console.print(table)
    for line in details:
        console.print(line, markup=False, soft_wrap=True)
    counts = Counter(outcome.status for outcome in outcomes)
    console.print(", ".join(f"{n} {status}" for status, n in counts.most_common()))


def print_status(tasks: "list[Task]", out: Path, samples: list[int]) -> None:
    """Print the number of existing files per task."""
    from mttl.tasks.building.build_gym import count_files

    table = Table("task", "files", "", "category", "metric")
    n_complete = 0
    for task in tasks:
        n_files, n_wanted = count_files(task, out, samples)
        n_complete += n_files == n_wanted
        word = "complete" if n_files == n_wanted else "incomplete" if n_files else "absent"
        table.add_row(task.name, f"{n_files} of {n_wanted}", word, task.category, task.metric)
    make_console().print(table)
    say(f"{n_complete} of {len(tasks)} tasks are complete in {out}")
