"""Convert records to lines: filtering, formatting and error messages.

A line is a tuple of the input and all reference answers.
"""

from collections.abc import Iterable, Iterator

from mttl.io.errors import TaskError
from mttl.tasks.dialogue import COLUMNS
from mttl.tasks.filters import TEXT_FILTERS, RecordError, shown
from mttl.tasks.functions import FUNCTIONS, Rows
from mttl.tasks.rows import TSV
from mttl.tasks.sampling import Line
from mttl.tasks.task import Task
from mttl.tasks.template import (
    Read,
    Record,
    as_text,
    compile_condition,
    compile_field,
    compile_template,
    compile_values,
    template_fields,
)

MOST_FOUND = 5  # values in a message


def convert(task: Task, split: str, records: Iterable[Record]) -> Iterator[Line]:
    """Yield the records of a split as lines of input and reference answers, in order.

    Memory use does not depend on the number of records, except for the few tasks that merge several
    records into a line. All records of the split must be given, because some tasks use a random
    generator that is seeded at the start. The `TaskError` for a record that cannot be converted has
    the task, split, row from 1, field and value.
    """
    write, number = _writer(task), 0
    keep = None if task.rows is None else compile_condition(task.rows, task.labels)

    def kept() -> Rows:
        nonlocal number
        n_kept, found = 0, dict[str, None]()
        fields = sorted(template_fields(task.rows or ""))
        for number, record in enumerate(records, 1):
            if keep is None or keep(record):
                n_kept += 1
                yield number, record
            elif not n_kept and len(found) < MOST_FOUND:
                found[", ".join(f"{name} = {shown(record.get(name))}" for name in fields)] = None
        if found and not n_kept:
            raise TaskError(
                f"task '{task.name}', split '{split}': none of {number:,} records has rows: "
                f"'{task.rows}'; there are {'; '.join(found)}. Correct the condition"
            )

    try:
        rows = kept() if task.prepare is None else _prepared(task.prepare, kept())
        for number, record in rows:  # noqa: B007 -- of the message
            yield write(record)
    except RecordError as error:
        place = f"task '{task.name}', split '{split}', row {number}"
        raise TaskError(f"{place}: {error}") from error


def _prepared(name: str, rows: Rows) -> Rows:
    try:
        yield from FUNCTIONS[name](rows)
    except (TaskError, RecordError):
        raise
    except KeyError as error:
        raise RecordError(f"the field {error} is missing") from error
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise RecordError(f"the record is malformed for '{name}' ({error!r})") from error


def _writer(task: Task) -> Read:
    """Return a function from a record to a line."""
    fill_input = compile_template(task.input, task.labels)
    clean = TEXT_FILTERS[task.cleaning] if task.cleaning is not None else str
    one, is_tsv = task.references == "one", task.ending == TSV
    columns = {name: compile_field(name, task.labels, f"{{{name}}}") for name in task.columns}
    kept = COLUMNS if task.kind == "dialogue" else ()
    fill_output = (compile_template if one else compile_values)(task.output, task.labels)

    def write(record: Record) -> Line:
        text, answer = clean(fill_input(record)), fill_output(record)
        line = Line((text, *((answer,) if one else _answers(answer))))
        if columns or kept:
            own = {name: record[name] for name in kept if name in record}
            line.columns = own | {name: read(record) for name, read in columns.items()}
        if not is_tsv and not all(map(str.strip, line)):  # CrossFit's files have empty texts
            what = "input" if not text.strip() else "output"
            raise RecordError(f"the {what} is empty; exclude such records with the key 'rows'")
        return line

    return write


def _answers(items: object) -> tuple[str, ...]:
    """Return reference answers; an empty list becomes one empty answer, as in CrossFit."""
    if not isinstance(items, list):
        raise RecordError(f"the output is {shown(items)}; with 'references: all' it must be a list")
    try:
        return tuple(map(as_text, items)) or ("",)
    except RecordError as error:
        raise RecordError(f"an item of the output {error}") from error
