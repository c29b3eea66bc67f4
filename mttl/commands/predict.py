"""Answer a table of questions with a trained run, and with tasks that were adapted from it.

mttl predict --from runs/crossfit --task verb_past < words.tsv > answers.tsv
mttl predict --from runs/crossfit --adapted models/past --in mixed.jsonl --out answers.jsonl
mttl predict --from runs/crossfit --in reviews.csv --choices good bad

TSV, CSV (with a header) or JSONL: the column input, and where there are any, task, output (the
right answer, to score by) and choices. A file that --out names is continued where an earlier start
left it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.name_checks import run_tasks
from mttl.commands.options import (
    READ,
    WORK,
    WRITTEN,
    add_adapted,
    add_source,
    make_parser,
    natural,
    positive,
)
from mttl.io.errors import ConfigError, TaskError, nearest
from mttl.io.reading import require_file


def main(arguments: list[str] | None = None) -> int:
    """Answer, write and score; return the exit status."""
    options = parse(arguments)
    search = {"num_beams": options.beams, "max_new_tokens": options.max_tokens}
    draws = {"temperature": options.temperature, "top_p": options.top_p}
    if any(value is not None for value in draws.values()):
        if options.beams is not None:
            raise ConfigError("--beams searches and --temperature and --top-p draw: choose one")
        search |= draws | {"num_beams": 1, "do_sample": True, "top_k": 0}
    if options.top_p is not None and options.top_p > 1:
        raise ConfigError(f"--top-p ({options.top_p}) is a share, at most 1")
    files = [Path(name).resolve() for name in (options.questions, options.out) if name]
    if len(files) > len(set(files)):
        raise ConfigError(f"--out '{options.out}' is the file of the questions: name another one")
    check_named(options.source, options.adapted)
    if options.questions is not None:
        require_file(options.questions, TaskError)
    check_task(options.task, [options.source, *options.adapted])
    from mttl.commands.prediction_table import prediction_table

    prediction_table(options, {name: value for name, value in search.items() if value is not None})
    return 0


def check_task(task: str | None, folders: Sequence[str | None]) -> None:
    """Check that a run, or a task that was adapted from it, is the task of the questions.

    Raises:
        TaskError: If none is.
    """
    known = [run_tasks(folder) for folder in folders if folder is not None]
    tasks = [name for names in known for name in names]
    if task is not None and all(known) and task not in tasks:
        raise TaskError(
            f"--task: there is no task '{task}'.{nearest(task, tasks)} --adapted DIR adds one that "
            "was kept"
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("predict", __doc__)
    add = parser.group(READ).add_argument
    add_source(parser, required=False)
    add_adapted(parser)
    add("--task", metavar="NAME", help="task of the rows that name none")
    add("--in", dest="questions", metavar="FILE", help="questions (standard input)")
    add(
        "--format",
        choices=("tsv", "csv", "jsonl"),
        help="format of both files (by their names, else by the first character)",
    )
    add = parser.group(WORK).add_argument
    add(
        "--choices",
        nargs="+",
        default=[],
        metavar="ANSWER",
        help="choose by likelihood among these",
    )
    add("--per-token", action="store_true", help="compare means over the tokens of a choice")
    add("--beams", type=positive, metavar="N", help="search with beams (as the run was evaluated)")
    add("--temperature", type=above_zero, metavar="T", help="draw answers")
    add("--top-p", type=above_zero, metavar="P", help="draw from the likeliest share P of all")
    add("--max-tokens", type=positive, metavar="N", help="longest answer (as in training)")
    add("--seed", type=natural, default=13, metavar="N", help="seed of sampling (%(default)s)")
    add(
        "--batch-size",
        type=positive,
        default=64,
        metavar="N",
        help="questions at a time (%(default)s)",
    )
    add(
        "--metric", metavar="NAME", help="metric of the scores (that of the run's results, else EM)"
    )
    out = parser.group(WRITTEN)
    out.add_argument("--out", metavar="FILE", help="the same with answers (standard output)")
    return parser.parse_args(arguments)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' must be a number above 0")
    return value
