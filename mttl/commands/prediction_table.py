"""Answer a table of questions with a run and the tasks that were adapted from it."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from mttl.assembly.load_tasks import load_tasks
from mttl.assembly.model import Built
from mttl.inference.choices import check_choices
from mttl.inference.input_table import (
    ANSWER,
    FORMATS,
    PROBABILITIES,
    UNANSWERED,
    Rows,
    check_questions,
    choices_of,
    format_header,
    format_rows,
    guess_kind,
    parse_answer,
    parse_rows_of,
    references_of,
    text_of,
)
from mttl.io.errors import ConfigError, MttlError, TaskError, nearest
from mttl.io.files import locked, write_text
from mttl.io.reading import read_text
from mttl.metrics.crossfit import check_metric, score_answers
from mttl.metrics.metric_names import TaskMetric
from mttl.plugins import classes as plugins
from mttl.runtime.command import make_console
from mttl.runtime.progress_bar import counting
from mttl.tasks.md5_sums import published_sums

CHUNK = 8  # batches that are sorted by length together, and written together
MOST_LABELS = 20  # of a confusion matrix that is printed


def prediction_table(options: Namespace, search: Mapping[str, Any]) -> None:
    """Answer questions and write them with their answers; scores go to standard error.

    ``options`` are those of `mttl predict`; ``search`` replaces settings of the run's `generate`.
    Questions are read from standard input, and answers written to standard output, unless files
    are named. A file of answers is continued where an earlier start left it. Without a format, the
    names of the files decide, else whether the questions begin with ``{`` (JSONL) or not (TSV).
    """
    metric: str | None = options.metric
    out, questions = options.out, options.questions
    if metric is not None:
        check_metric(metric, ConfigError, "--metric")
        if plugins.METRICS.is_plugin(metric):
            plugins.find_class(plugins.METRICS, metric, trusted=True)
    if out is not None and Path(out).is_dir():
        raise ConfigError(f"--out '{out}' is a folder: name a file")
    place = questions or "standard input"
    text = _text_of(questions)
    kind = options.format or _kind_of_both(questions, out) or guess_kind(text)
    rows = parse_rows_of(text, kind, place)
    check_questions(rows, place)
    models, metrics = load_tasks(options.source, options.adapted, options.backbone)
    names = _tasks_of(rows, options.task, models, place)
    n_empty = names.count("")
    if n_empty:  # what an earlier start said
        rows = [{name: row[name] for name in row if name != UNANSWERED} for row in rows]
    choices = [choices_of(row) or options.choices for row in rows]
    chooses = any(choices)
    if options.per_token and not chooses:
        raise ConfigError("--per-token compares choices: give --choices, or a column 'choices'")
    _check_choices(choices, search, place, [models.get(name) for name in names])
    if metric is not None:
        metrics = dict.fromkeys(models, metric)
    new = [ANSWER, *[PROBABILITIES] * chooses, *[UNANSWERED] * bool(n_empty)]
    columns = [*(name for name in rows[0] if name not in new), *new]
    size = options.batch_size * CHUNK
    with ExitStack() as block:
        done: Rows = []
        if out is not None:
            refusal = MttlError(f"another process writes '{out}'; wait for it")
            path = Path(out)
            block.enter_context(locked(path.with_name(f".{path.name}.lock"), refusal))
            done = _finished(path, rows, columns, kind, size)
            file = block.enter_context(path.open("a", encoding="utf-8", newline=""))
        else:
            file = sys.stdout
            file.write(format_header(columns, kind))
        status = make_console(stderr=True)
        count = block.enter_context(counting(status, "answering", len(rows), len(done)))
        for start in range(len(done), len(rows), size):
            part = slice(start, start + size)
            torch.manual_seed(options.seed + start)  # the same draws where a file is continued
            found = _answer(rows[part], names[part], choices[part], models, options, search)
            file.write(format_rows(found, columns, kind))
            file.flush()
            if out is not None:
                os.fsync(file.fileno())
            done += found
            count.set(len(done))
    _report(rows, names, [row[ANSWER] for row in done], metrics, choices)
    if n_empty:
        make_console(stderr=True).print(
            f"{n_empty:,} of {len(rows):,} questions have no answer: their inputs are empty"
        )


def _answer(
    rows: Rows,
    names: Sequence[str],
    choices: Sequence[Sequence[str]],
    models: Mapping[str, Built],
    options: Namespace,
    search: Mapping[str, Any],
) -> Rows:
    """Return the rows with their answers; every model answers its own at once."""
    found = [dict(row) for row in rows]
    groups: dict[tuple[int, bool], list[int]] = {}
    for place, name in enumerate(names):
        if not name:
            found[place] |= {ANSWER: None, UNANSWERED: "the input is empty"}
            continue
        groups.setdefault((id(models[name]), bool(choices[place])), []).append(place)
    for (_, chooses), places in groups.items():
        model = models[names[places[0]]]
        tasks, texts = (
            [values[p] for p in places] for values in (names, [text_of(r, "input") for r in rows])
        )
        if chooses:
            given = [choices[p] for p in places]
            chosen = model.choose(
                tasks, texts, given, per_token=options.per_token, batch_size=options.batch_size
            )
            for place, choice in zip(places, chosen, strict=True):
                shown = {name: round(value, 6) for name, value in choice.probabilities.items()}
                found[place] |= {ANSWER: choice.answer, PROBABILITIES: shown}
        else:
            answers = model.predict(tasks, texts, batch_size=options.batch_size, **search)
            for place, answer in zip(places, answers, strict=True):
                found[place][ANSWER] = answer
    return found


def _tasks_of(rows: Rows, task: str | None, models: Mapping[str, Built], place: str) -> list[str]:
    """Return the task of every row; an empty name where there is no question."""
    only = next(iter(models)) if len(models) == 1 else None
    names = [
        (text_of(row, "task") or task or only) if text_of(row, "input") else "" for row in rows
    ]
    for number, name in enumerate(names, 1):
        if name is None:
            raise TaskError(
                f"{place}, row {number}: nothing says which task it is of. Add a column 'task', or "
                "give --task NAME"
            )
        if name and name not in models:
            raise TaskError(
                f"{place}, row {number}: there is no task '{name}'.{nearest(name, models)} "
                "--adapted DIR adds one that was kept"
            )
    return [str(name) for name in names]


def _check_choices(
    choices: Sequence[Sequence[str]],
    search: Mapping[str, Any],
    place: str,
    models: Sequence[Built | None],
) -> None:
    if search and all(given or not model for given, model in zip(choices, models, strict=True)):
        raise ConfigError(
            "nothing is generated where answers are chosen: leave out --beams, --temperature, "
            "--top-p and --max-tokens, or the choices"
        )
    checked = set()
    for number, (given, model) in enumerate(zip(choices, models, strict=True), 1):
        if model and given and (kind := (id(model), *given)) not in checked:
            where = f"{place}, row {number}"
            model.choice_ids(check_choices(given, where), where)
            checked.add(kind)


def _finished(path: Path, rows: Rows, columns: Sequence[str], kind: str, size: int) -> Rows:
    """Return the rows that an earlier start has answered, and remove others from the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = read_text(path, TaskError) if path.is_file() else ""
    header, place = format_header(columns, kind), str(path)
    advice = "Name another file with --out, or remove this one"
    if not (text.startswith(header) or header.startswith(text)):
        raise TaskError(f"'{path}' does not begin with the header of these answers. {advice}")
    lines = kind == "jsonl"
    whole = text[: text.rfind("\n") + 1]
    done = parse_rows_of(whole, kind, place) if lines else _whole_rows(text, kind, place)
    unfinished = len(done) < len(rows) or not text.endswith("\n")
    kept = done[:-1] if unfinished and not lines else done  # a table's last row may be cut
    if not kept:
        first, rest = _begun(rows[0], columns, kind), text[len(header) :]
        if not (first.startswith(rest) or rest.startswith(first)):
            raise TaskError(f"'{path}' does not begin with the first question. {advice}")
    for number, (old, row) in enumerate(zip(kept, rows, strict=False), 1):
        asked = [name for name in row if name not in (ANSWER, PROBABILITIES, UNANSWERED)]
        other = any((old.get(name) or "") != (row[name] or "") for name in asked)
        if other or ANSWER not in old:
            raise TaskError(
                f"'{path}', row {number} does not answer row {number} of the questions. {advice}"
            )
        old[ANSWER] = parse_answer(old[ANSWER], kind, f"{path}, row {number}")
    if len(done) > len(rows):
        raise TaskError(f"'{path}' holds {len(done)} answers to {len(rows)} questions. {advice}")
    if unfinished:  # parts are answered whole
        kept = kept[: len(kept) // size * size]
    write_text(path, header + format_rows(kept, columns, kind))
    return kept


def _whole_rows(text: str, kind: str, place: str) -> Rows:
    """Return a table's rows; where it is cut within a cell, those before that row."""
    lines = text.split("\n")
    for end in range(len(lines), 0, -1):
        with suppress(TaskError):
            return parse_rows_of("\n".join(lines[:end]), kind, place)
    return []


def _begun(row: dict[str, Any], columns: Sequence[str], kind: str) -> str:
    """Return the beginning of a row's line, up to its answer."""
    known = list(row if kind == "jsonl" else columns)
    known = known[: known.index(ANSWER)] if ANSWER in known else known
    line = format_rows([{name: row.get(name, "") for name in known}], known, kind)
    return line.removesuffix("\n").removesuffix("}" if kind == "jsonl" else "")


def _kind_of_both(questions: str | None, out: str | None) -> str | None:
    kinds = [kind for kind in (_kind_of(questions), _kind_of(out)) if kind is not None]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"'{questions}' and --out '{out}' differ in format. Give both the same ending, or "
            "name the format of both with --format"
        )
    return kinds[0] if kinds else None


def _kind_of(name: str | None) -> str | None:
    ending = Path(name).suffix.removeprefix(".") if name else ""
    return ending if ending in FORMATS else None


def _text_of(questions: str | None) -> str:
    if questions is not None:
        return read_text(questions, TaskError)
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"standard input must be UTF-8; byte {error.start + 1} is not") from error


def _report(
    rows: Rows,
    names: Sequence[str],
    answers: Sequence[str],
    metrics: Mapping[str, str],
    choices: Sequence[Sequence[str]],
) -> None:
    """Print the score of every task whose right answers are known, and what was taken for what."""
    references = [references_of(row) for row in rows]
    console = make_console(stderr=True)
    table = Table("task", "metric", "score (%)", "answers", title_justify="left")
    matrices = []
    for task in dict.fromkeys(filter(None, names)):
        places = [p for p, name in enumerate(names) if name == task and references[p]]
        if not places:
            continue
        metric = TaskMetric(
            metrics.get(task, "EM"), published=task in published_sums(), options=choices[places[0]]
        )
        right, found = [references[p] for p in places], [answers[p] for p in places]
        value = score_answers(metric, found, right)
        table.add_row(escape(task), metric, f"{100 * value:.1f}", str(len(places)))
        labels = list(dict.fromkeys([each[0] for each in right] + found))
        if any(choices) and len(labels) <= MOST_LABELS:
            matrices.append(confusion_table(task, [each[0] for each in right], found))
    if table.row_count:
        console.print(table)
    for matrix in matrices:
        console.print(matrix)


def confusion_table(task: str, right: Sequence[str], found: Sequence[str]) -> Table:
    """Return how often each label was taken for each."""
    labels = sorted({*right, *found})
    table = Table(title=f"{escape(task)}: rows are right, columns were chosen")
    for name in ("", *labels):
        table.add_column(escape(name), justify="right")
    pairs = list(zip(right, found, strict=True))
    for label in labels:
        table.add_row(escape(label), *(str(pairs.count((label, other))) for other in labels))
    return table
