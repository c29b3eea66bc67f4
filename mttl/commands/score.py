"""Score a table of answers by any metrics.

mttl score answers.jsonl --metric exact bleu
mttl score answers.jsonl --metric knowledge_f1 density --references "{response}" --out scores.csv

The table is TSV, CSV (with a header) or JSONL, as mttl predict writes it: with the columns
prediction, output (the right answer) and optionally task, and the columns that metrics read, such
as knowledge. Metrics have their settings after the name ("bertscore model=DIR"); module:Class is a
custom one.
"""

import argparse
import json
from pathlib import Path

from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError, TaskError, raised_as
from mttl.io.files import write_table, write_text
from mttl.io.reading import read_text, require_file, shown
from mttl.metrics.metric_names import check_metric
from mttl.runtime.command import make_console


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("answers", metavar="ANSWERS", help="table of answers")
    help = "metrics, with settings: 'bertscore model=DIR'"
    add("--metric", nargs="+", required=True, metavar="NAME", help=help)
    add("--task", metavar="NAME", help="task of rows without one (the name of the file)")
    help = "right answer of a row by its columns, such as '{response}' (the column output)"
    add("--references", metavar="TEMPLATE", help=help)
    help = "format of the table (from the file name, or the first character)"
    add("--format", choices=("tsv", "csv", "jsonl"), help=help)
    parser.add_out("file of the scores, .csv or .json", metavar="FILE", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Score the answers, and print or write the scores."""
    place, out = options.answers, options.out
    for name in options.metric:
        check_metric(name, ConfigError, "--metric")
    require_file(place, TaskError)
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ConfigError(f"--out '{out}' must end in .csv or .json")
    from mttl.commands.answer_scores import TaskScore, check_metrics, score_rows, score_table
    from mttl.inference import input_table as table
    from mttl.tasks.filters import RecordError
    from mttl.tasks.template import compile_values

    check_metrics(options.metric, "--metric")
    text, ending = read_text(place, TaskError), Path(place).suffix.removeprefix(".")
    kind = options.format or (ending if ending in table.FORMATS else table.guess_kind(text))
    rows, tasks, answers = table.parse_rows_of(text, kind, place), [], []
    right = options.references and compile_values(options.references)
    for number, row in enumerate(rows, 1):
        where = f"{place}, row {number}"
        if table.ANSWER not in row:
            found = shown(", ".join(row))
            raise TaskError(
                f"{where}: the column '{table.ANSWER}' is missing; columns are "
                f"{found}. Name a table of answers of mttl predict, or rename the column"
            )
        with raised_as(TaskError, where, RecordError):
            if right:
                row["output"] = right(row)
            answers.append(table.answer_of(row, kind, where))
            name = table.text_of(row, "task") or options.task or Path(place).stem
            tasks.append("" if row.get(table.UNANSWERED) else name)
    choices = list(map(table.choices_of, rows))
    scores = score_rows(rows, tasks, answers, dict.fromkeys(tasks, options.metric), choices)
    if not scores:
        raise TaskError(
            f"{place}: no row has a right answer. Add the column 'output', or name its column with "
            "--references TEMPLATE"
        )
    make_console().print(score_table(scores))
    if out is not None:
        found = [one._asdict() for one in scores]
        if out.suffix == ".csv":
            write_table(out, TaskScore._fields, found)
        else:
            write_text(out, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
