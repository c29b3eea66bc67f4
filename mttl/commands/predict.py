"""Answer a table of inputs with a trained run and its adapted tasks.

mttl predict --from runs/crossfit --task verb_past < words.tsv > answers.tsv
mttl predict --from runs/crossfit --adapted models/past --in mixed.jsonl --out answers.jsonl
mttl predict --from runs/crossfit --in reviews.csv --choices good bad
mttl predict --from runs/pos --on runs/languages:es --in spanish.jsonl
mttl predict --from runs/talk --task logits:guide=1,invented=-0.5 --in talks.jsonl
mttl predict --from runs/talk --task guide --in talks.jsonl --candidates 8 --rerank reverse=0.5

The input is TSV, CSV (with a header), JSONL, CoNLL or CoNLL-U (.conll, .conllu). A row has the
columns that its task's training file had, columns for --input TEMPLATE, or the column input;
optionally also task, output (reference answer, for scoring) and choices. CoNLL files are for tasks
with tags or trees; the output is the same file with predicted ones. The output file appears when it
is complete; an interrupted command continues.
"""

import argparse

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.name_checks import check_run_task
from mttl.commands.options import NATURAL, POSITIVE, CommandParser, command
from mttl.inference.mixture_name import tasks_in, weights_of
from mttl.io.errors import ConfigError, TaskError
from mttl.io.reading import read_text, require_file


def _declare(parser: CommandParser) -> None:
    parser.add_source(required=False)
    parser.add_adapted(more=", or of other runs")
    add = parser.read.add_argument
    help = "other runs with a task, such as runs/languages:es, instead of those of skills.on"
    add("--on", nargs="+", metavar="RUN:TASK", help=help)
    help = "task of rows whose column task is empty or missing, a mixture such as mix:a=0.7,b=0.3, "
    help += "or a weighted sum of the logits of tasks, such as logits:a=1,b=-0.5"
    add("--task", metavar="NAME", help=help)
    add("--in", dest="questions", metavar="FILE", help="table of inputs (standard input)")
    help = "input of a row by its columns, such as '{message}' (as in the run's task file)"
    add("--input", dest="template", metavar="TEMPLATE", help=help)
    help = "format of input and output (from the file names, or the first character)"
    add("--format", choices=("tsv", "csv", "jsonl", "conll", "conllu"), help=help)
    help = "columns of CoNLL: words, tags, and _ for others (words first, tags last)"
    add("--columns", nargs="+", default=(), metavar="NAME", help=help)
    add = parser.work.add_argument
    help = "answers to choose from by likelihood, or @FILE with one per line"
    add("--choices", nargs="+", default=[], metavar="ANSWER", help=help)
    help = "rank choices by mean instead of total token log-likelihood"
    add("--per-token", action="store_true", help=help)
    add("--beams", **POSITIVE, help="number of beams (as in the run's evaluation)")
    add("--temperature", type=above_zero, metavar="T", help="sample answers at this temperature")
    help = "sample from the most probable tokens of total probability P"
    add("--top-p", type=above_zero, metavar="P", help=help)
    add("--max-tokens", **POSITIVE, help="maximum tokens of an answer (as in training)")
    help = "generate N answers per input and write the most probable one (1)"
    add("--candidates", **POSITIVE, help=help)
    help = "weights of further tasks' log-probabilities in ranking the candidates"
    add("--rerank", nargs="+", metavar="TASK=WEIGHT", help=help)
    add("--seed", **NATURAL, default=13, help="seed of sampling (%(default)s)")
    add("--batch-size", **POSITIVE, default=64, help="inputs per batch (%(default)s)")
    help = "metrics (as in the run's results, or exact)"
    add("--metric", nargs="+", default=[], metavar="NAME", help=help)
    parser.add_out("table with answers (standard output)", metavar="FILE", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Answer, write and score."""
    search = {"num_beams": options.beams, "candidates": options.candidates}
    search["max_new_tokens"] = options.max_tokens
    draws = {"temperature": options.temperature, "top_p": options.top_p}
    drawn = any(value is not None for value in draws.values())
    if drawn and options.beams is not None:
        raise ConfigError("--beams does not work with --temperature and --top-p; remove one")
    if options.top_p is not None and options.top_p > 1:
        raise ConfigError(f"--top-p ({options.top_p}) must be at most 1")
    if drawn:
        search |= draws | {"num_beams": 1, "do_sample": True, "top_k": 0}
    tasks = tasks_in(options.task) if options.task else []
    if options.rerank is not None:
        weights = weights_of(options.rerank)
        if weights is None or (options.candidates or 1) == 1:
            raise ConfigError(
                f"--rerank {' '.join(options.rerank)} must name each task once, such as "
                "reverse=0.5 guide=1 (separated by blanks), and needs --candidates of at least 2"
            )
        search |= {"rerank": weights}
        tasks += weights
    if len(options.choices) == 1 and (given := options.choices[0]).startswith("@"):
        options.choices = list(filter(str.strip, read_text(given[1:], TaskError).splitlines()))
    check_named(options.source, options.adapted)
    if options.questions is not None:
        require_file(options.questions, TaskError)
    for task in tasks or [None]:
        check_run_task(task, *filter(None, [options.source]), *options.adapted)
    from mttl.commands.prediction_table import prediction_table

    options.search = {name: value for name, value in search.items() if value is not None}
    prediction_table(options)


def above_zero(text: str) -> float:
    """Return a positive number from a text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' must be a number above 0")
    return value
