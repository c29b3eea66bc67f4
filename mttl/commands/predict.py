"""Answer a table of questions with a trained run, and with tasks that were adapted from it.

mttl predict --from runs/crossfit --task verb_past < words.tsv > answers.tsv
mttl predict --from runs/crossfit --adapted models/past --in mixed.jsonl --out answers.jsonl
mttl predict --from runs/crossfit --in reviews.csv --choices good bad

TSV, CSV (with a header) or JSONL: the column input, and where there are any, task, output (the
right answer, to score by) and choices. The file that --out names appears when all is answered; an
interrupted command continues where it stopped.
"""

import argparse

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.name_checks import check_run_task
from mttl.commands.options import NATURAL, POSITIVE, CommandParser, command
from mttl.io.errors import ConfigError, TaskError
from mttl.io.reading import require_file


def _declare(parser: CommandParser) -> None:
    parser.add_source(required=False)
    parser.add_adapted()
    add = parser.read.add_argument
    add("--task", metavar="NAME", help="task of the rows that name none")
    add("--in", dest="questions", metavar="FILE", help="questions (standard input)")
    help = "format of both files (by their names, else by the first character)"
    add("--format", choices=("tsv", "csv", "jsonl"), help=help)
    add = parser.work.add_argument
    help = "choose by likelihood among these"
    add("--choices", nargs="+", default=[], metavar="ANSWER", help=help)
    add("--per-token", action="store_true", help="compare means over the tokens of a choice")
    add("--beams", **POSITIVE, help="search with beams (as the run was evaluated)")
    add("--temperature", type=above_zero, metavar="T", help="draw answers")
    add("--top-p", type=above_zero, metavar="P", help="draw from the likeliest share P of all")
    add("--max-tokens", **POSITIVE, help="longest answer (as in training)")
    add("--seed", **NATURAL, default=13, help="seed of sampling (%(default)s)")
    add("--batch-size", **POSITIVE, default=64, help="questions at a time (%(default)s)")
    help = "metric of the scores (that of the run's results, else EM)"
    add("--metric", metavar="NAME", help=help)
    parser.add_out("the same with answers (standard output)", metavar="FILE", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Answer, write and score."""
    search = {"num_beams": options.beams, "max_new_tokens": options.max_tokens}
    draws = {"temperature": options.temperature, "top_p": options.top_p}
    drawn = any(value is not None for value in draws.values())
    problem = ""
    if drawn and options.beams is not None:
        problem = "--beams searches and --temperature and --top-p draw: choose one"
    elif options.top_p is not None and options.top_p > 1:
        problem = f"--top-p ({options.top_p}) is a share, at most 1"
    if problem:
        raise ConfigError(problem)
    if drawn:
        search |= draws | {"num_beams": 1, "do_sample": True, "top_k": 0}
    check_named(options.source, options.adapted)
    if options.questions is not None:
        require_file(options.questions, TaskError)
    check_run_task(options.task, *filter(None, [options.source]), *options.adapted)
    from mttl.commands.prediction_table import prediction_table

    options.search = {name: value for name, value in search.items() if value is not None}
    prediction_table(options)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' must be a number above 0")
    return value
