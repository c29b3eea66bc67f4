"""Score a table of answers by any metrics.

mttl score answers.jsonl --metric exact bleu
mttl score answers.jsonl --metric knowledge_f1 density --references "{response}" --out scores.csv

The table is TSV, CSV (with a header) or JSONL, as mttl predict writes it: with the columns
prediction, output (the right answer) and optionally task, and the columns that metrics read, such
as knowledge. Metrics have their settings after the name ("bertscore model=DIR"); module:Class is a
custom one.
"""

import argparse
from pathlib import Path

from mttl.commands.options import CommandParser, command
from mttl.io.errors import TaskError, raised_as
from mttl.io.files import write_text
from mttl.io.reading import require_file, shown
from mttl.runtime.command import make_console


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("answers", metavar="ANSWERS", help="table of answers")
    help = "metrics, with settings: 'bertscore model=DIR'"
    add("--metric", nargs="+", required=True, metavar="NAME", help=help)
    help = "right answer of a row by its columns, such as '{response}' (the column output)"
    add("--references", default="{output}", metavar="TEMPLATE", help=help)
    parser.add_out("scores: .csv, .tsv or .jsonl", metavar="FILE", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Score the answers, and print or write the scores."""
    place, out = options.answers, options.out
    require_file(place, TaskError)
    from mttl.commands.answer_scores import (
        TaskScore,
        check_metrics,
        reads_references,
        score_rows,
        score_table,
    )
    from mttl.inference import input_table as table
    from mttl.tasks.filters import RecordError
    from mttl.tasks.template import compile_values, template_fields

    check_metrics(options.metric, "--metric")
    rows, kind = table.read_rows(place)
    right, needed = compile_values(options.references), template_fields(options.references)
    tasks, answers = [], []
    for number, row in enumerate(rows, 1):
        where = f"{place}, row {number}"
        if table.ANSWER not in row:
            raise TaskError(
                f"{where}: the column '{table.ANSWER}' is missing; columns are "
                f"{shown(', '.join(row))}. Name a table of mttl predict, or rename the column"
            )
        with raised_as(TaskError, where, RecordError):
            if needed <= row.keys():
                row["output"] = right(row)
            answers.append(table.answer_of(row, kind, where))
        name = table.text_of(row, "task") or Path(place).stem
        tasks.append("" if row.get(table.UNANSWERED) else name)
    choices = [table.choices_of(row) for row in rows]
    advice = f"name its columns by --references TEMPLATE, now {options.references}"
    if any(map(reads_references, options.metric)):
        table.check_references(rows, place, advice)
    scores = score_rows(rows, tasks, answers, dict.fromkeys(tasks, options.metric), choices)
    make_console().print(score_table(scores))
    if out is not None:
        columns, found = TaskScore._fields, [one._asdict() for one in scores]
        kind = out.suffix[1:] if out.suffix[1:] in table.FORMATS else kind
        text = table.format_header(columns, kind) + table.format_rows(found, columns, kind)
        write_text(out, text)
