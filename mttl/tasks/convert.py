"""Convert records to lines: filtering, formatting and error messages.

A line is a tuple of the input and all reference answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice

from mttl.io.errors import TaskError, raised_as
from mttl.tasks.filters import TEXT_FILTERS, RecordError, shown
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.rows import TSV
from mttl.tasks.sampling import Line
from mttl.tasks.task import Task
from mttl.tasks.template import (
    Column,
    Read,
    Record,
    compile_condition,
    compile_field,
    compile_template,
    compile_values,
    texts,
)

Chunk = tuple[Sequence[int], list[Record]]

_CHUNK = 250  # records per chunk: fast, and small enough for the cache


def convert(task: Task, split: str, records: Iterable[Record]) -> Iterator[Line]:
    """Yield the records of a split as lines of input and reference answers, in order.

    Memory use does not depend on the number of records, except for the few tasks that merge several
    records into a line. All records of the split must be given, because some tasks use a random
    generator that is seeded at the start.

    Raises:
        TaskError: If a record cannot be converted; with task, split, row from 1, field and value.
    """
    write = _writer(task)
    for numbers, chunk in _rows(task, split, records):
        yield from _each(write, numbers, chunk, task, split)


def _rows(task: Task, split: str, records: Iterable[Record]) -> Iterator[Chunk]:
    """Yield chunks of filtered and prepared records, with their row numbers."""
    kept = _kept(task, split, records)
    if task.prepare is None:
        yield from kept
        return
    last = 0

    def numbered() -> Iterator[tuple[int, Record]]:
        nonlocal last
        for numbers, chunk in kept:
            for row in zip(numbers, chunk, strict=True):
                last = row[0]
                yield row

    prepared = FUNCTIONS[task.prepare](numbered())
    while True:
        try:
            chunk = list(islice(prepared, _CHUNK))
        except TaskError:
            raise
        except (RecordError, LookupError, AttributeError, TypeError, ValueError) as error:
            what = f"the record is malformed for '{task.prepare}' ({error!r})"
            if isinstance(error, RecordError):
                what = str(error)
            elif isinstance(error, KeyError):
                what = f"the field {error} is missing"
            raise TaskError(f"{_place(task, split, last)}: {what}") from error
        if not chunk:
            return
        yield [number for number, _ in chunk], [record for _, record in chunk]


def _kept(task: Task, split: str, records: Iterable[Record]) -> Iterator[Chunk]:
    condition = None if task.rows is None else compile_condition(task.rows, task.labels)
    source, start = iter(records), 1
    while chunk := list(islice(source, _CHUNK)):
        numbers: Sequence[int] = range(start, start + len(chunk))
        start += len(chunk)
        if condition is not None:
            keep = _each(condition, numbers, chunk, task, split)
            numbers, chunk = list(compress(numbers, keep)), list(compress(chunk, keep))
        yield numbers, chunk


def _each(
    function: Read, numbers: Sequence[int], records: list[Record], task: Task, split: str
) -> Column:
    """Apply a function to many records; after an error, find the responsible record."""
    try:
        return function(records)
    except RecordError:
        for number, record in zip(numbers, records, strict=True):
            with raised_as(TaskError, _place(task, split, number), RecordError):
                function([record])
        raise


def _place(task: Task, split: str, number: int) -> str:
    return f"task '{task.name}', split '{split}', row {number}"


def _writer(task: Task) -> Read:
    """Return a function from records to lines."""
    fill_input = compile_template(task.input, task.labels)
    clean = TEXT_FILTERS[task.cleaning] if task.cleaning is not None else None
    one = task.references == "one"
    columns = {name: compile_field(name, task.labels, f"{{{name}}}") for name in task.columns}
    fill_output = (compile_template if one else compile_values)(task.output, task.labels)

    def write(records: Sequence[Record]) -> list[Line]:
        inputs = fill_input(records)
        if clean is not None:
            inputs = list(map(clean, inputs))
        answers = [(text,) if one else _answers(text) for text in fill_output(records)]
        lines = [Line((text, *own)) for text, own in zip(inputs, answers, strict=True)]
        for name, read in columns.items():
            for line, value in zip(lines, read(records), strict=True):
                line.columns = {**line.columns, name: value}
        if task.ending != TSV:  # CrossFit's files have empty texts
            for line in lines:
                if not all(map(str.strip, line)):
                    what = "input" if not line[0].strip() else "output"
                    raise RecordError(
                        f"the {what} is empty; exclude such records with the key 'rows'"
                    )
        return lines

    return write


def _answers(items: object) -> tuple[str, ...]:
    """Return reference answers; an empty list becomes one empty answer, as in CrossFit."""
    if not isinstance(items, list):
        raise RecordError(f"the output is {shown(items)}; with 'references: all' it must be a list")
    try:
        return tuple(texts(items)) or ("",)
    except RecordError as error:
        raise RecordError(f"an item of the output {error}") from error
