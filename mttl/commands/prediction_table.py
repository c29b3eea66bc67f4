"""Answer a table of inputs with a run and its adapted tasks."""

import hashlib
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
from mttl.assembly.load_tasks import load_tasks
from mttl.assembly.model import Built
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.commands.answer_scores import check_metrics, score_rows, score_table
from mttl.commands.word_files import WORD_FORMATS, check_words, read_words, write_words
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
    read_rows,
    references_of,
    text_of,
)
from mttl.inference.mixture_name import is_combined
from mttl.inference.predictor import combined
from mttl.io import yaml12
from mttl.io.errors import ConfigError, TaskError, nearest, raised_as
from mttl.io.files import write_text
from mttl.io.record import Record
from mttl.runtime.command import make_console, say
from mttl.runtime.text_table import TextTable
from mttl.tasks.record_template import RecordTemplate

Models = Mapping[str, tuple[Built, str]]  # a model by name, and its task
Choices = Sequence[Sequence[str]]
CHUNK = 8  # batches that are sorted by length and written together
MOST_LABELS = 20  # in a printed confusion matrix


class Answered(Record):
    """New columns of rows; the job is the index of the first one, or the name of a merge."""

    job: int | str
    rows: list[dict[str, Any]]


def prediction_table(options: Namespace) -> None:
    """Answer inputs and write them with their answers; scores go to standard error.

    ``options.search`` overrides settings of the run's `generate`. The output file is written at the
    end; until then, answers are kept in a hidden folder next to it.
    """
    check_metrics(options.metric, "--metric")
    place = options.questions or "standard input"
    kind = options.format or _kind_of_both(options.questions, options.out)
    if kind in WORD_FORMATS:
        rows = read_words(options, kind)
    elif options.columns:
        raise ConfigError("--columns works only with --format conll; remove it")
    else:
        rows, kind = read_rows(options.questions, kind)
    loaded, of_run = load_tasks(options.source, options.adapted, options.backbone, options.on)
    for built in loaded.values():
        built.require(answers="mttl predict")
    models = {name: (built, name) for name, built in loaded.items()}
    options.task = options.task or (next(iter(models)) if len(models) == 1 else None)
    for name in dict.fromkeys(str(row.get("task") or options.task) for row in rows):
        if is_combined(name):
            with raised_as(TaskError, f"the task '{name}'", TaskError):
                models[name] = combined(name, partial(_find, models))
    asked, lacking = _with_inputs(rows, options, models, place)
    check_questions(asked, place, lacking)
    names = _tasks_of(asked, options.task, models, place)
    n_empty = names.count("")
    if n_empty:  # from an earlier start
        rows = [{name: row[name] for name in row if name != UNANSWERED} for row in rows]
    choices = [choices_of(row) or options.choices for row in rows]
    chooses = any(choices)
    if options.per_token and not chooses:
        raise ConfigError("--per-token needs choices: give --choices or a column 'choices'")
    first, task = models[next(filter(None, names))]
    heads = first.form.task_heads
    if heads and (chooses or options.search):
        raise ConfigError(
            "tasks with heads neither choose nor generate answers: remove choices, --beams, "
            "--temperature, --top-p, --max-tokens and --candidates"
        )
    if kind in WORD_FORMATS:
        check_words(kind, names[0], heads.get(task))
    _check_choices(choices, options.search, place, [name and models[name][0] for name in names])
    metrics = {n: options.metric or [of_run.get(own, "exact")] for n, (_, own) in models.items()}
    new = [ANSWER, *[PROBABILITIES] * chooses, *[UNANSWERED] * bool(n_empty)]
    columns = [*(name for name in rows[0] if name not in new), *new]
    header, size = format_header(columns, kind), options.batch_size * CHUNK

    def answer(start: int) -> Answered:
        part = slice(start, start + size)
        torch.manual_seed(options.seed + start)  # the same samples after an interruption
        found = _answer(asked[part], names[part], choices[part], models, options)
        if options.out is None:
            both = [row | own for row, own in zip(rows[part], found, strict=True)]
            sys.stdout.write((header if start == 0 else "") + format_rows(both, columns, kind))
            sys.stdout.flush()
        return Answered(job=start, rows=found)

    hidden = options.out and options.out.with_name(f".{options.out.name}.part")
    results = ResumableJobs(hidden and hidden / "answers.jsonl", Answered)
    with results.writing():
        if hidden:
            folders = {built.folder for built in loaded.values()}
            folders |= {own.saved.folder for built in loaded.values() for own in built.others}
            digests = sorted(inventory_digest(folder) for folder in folders if folder)
            questions = json.dumps([asked, names, choices]).encode()
            settings = {
                **{"questions": hashlib.sha256(questions).hexdigest(), "inventories": digests},
                **{"search": options.search, "seed": options.seed, "on": options.on},
                **{"rows": size, "per_token": options.per_token},
            }
            problem = f"'{hidden}' has partial results of other inputs or settings"
            advice = "Remove it, or choose another file with --out"
            keep_settings(hidden / "settings.yaml", yaml12.dump(settings), problem, advice)
        starts, status = range(0, len(rows), size), make_console(stderr=True)
        results.run(starts, lambda start, _: answer(start), status, doing="answering")
        found = [row for _, part in sorted(results.finished.items()) for row in part.rows]
        done = [row | own for row, own in zip(rows, found, strict=True)]
        if kind in WORD_FORMATS:
            texts, answers = [row["words"] for row in rows], [row[ANSWER] for row in found]
            write_words(options, kind, heads[task], texts, answers)
        elif options.out is not None:
            write_text(options.out, header + format_rows(done, columns, kind))
    if hidden:
        shutil.rmtree(hidden, ignore_errors=True)
    _report(asked, names, found, metrics, choices)
    if n_empty:
        empty = f"{n_empty:,} of {len(rows):,} rows have no answer because their inputs are empty"
        say(empty, stderr=True)


def _find(models: Models, name: str | None, place: str = "") -> tuple[Built, str]:
    if name is None:
        raise TaskError(f"{place}the task is missing; add a column 'task' or --task NAME")
    if name not in models:
        advice = "Load adapted tasks with --adapted DIR"
        raise TaskError(f"{place}unknown task '{name}'.{nearest(name, models)} {advice}")
    return models[name]


def _answer(
    rows: Rows, names: Sequence[str], choices: Choices, models: Models, options: Namespace
) -> Rows:
    """Return the new columns of rows; each model answers its rows in one call."""

    def given_to(model: Built, task: str, row: dict[str, Any]) -> str | dict[str, Any]:
        """Return a record if the task reads it, because further tasks may read it, too."""
        template = None if options.template else model.form.task_templates.get(task)
        return row if template and template.fits(row) else text_of(row, "input")

    found: Rows = [{} for _ in rows]
    groups: dict[tuple[int, bool], list[int]] = {}
    for place, name in enumerate(names):
        if not name:
            found[place] = {ANSWER: None, UNANSWERED: "the input is empty"}
            continue
        groups.setdefault((id(models[name][0]), bool(choices[place])), []).append(place)
    for (_, chooses), places in groups.items():
        model, _ = models[names[places[0]]]
        own = [models[names[p]][1] for p in places]
        given = own, [given_to(model, own[n], rows[p]) for n, p in enumerate(places)]
        more: dict[str, Any] = {"batch_size": options.batch_size}
        more["control"] = [model.form.codes_in(own[n], rows[p]) for n, p in enumerate(places)]
        if chooses:
            offered = [choices[p] for p in places]
            chosen = model.choose(*given, offered, per_token=options.per_token, **more)
            for place, choice in zip(places, chosen, strict=True):
                shown = {name: round(value, 6) for name, value in choice.probabilities.items()}
                found[place] = {ANSWER: choice.answer, PROBABILITIES: shown}
        else:
            answers = model.predict(*given, **more, **options.search)
            for place, answer in zip(places, answers, strict=True):
                found[place] = {ANSWER: answer}
    return found


def _with_inputs(rows: Rows, options: Namespace, models: Models, place: str) -> tuple[Rows, str]:
    """Return the rows with inputs and right answers, and a template whose columns a row lacks."""
    given = None if options.template is None else RecordTemplate(input=options.template)
    known = {name: model.form.task_templates.get(task) for name, (model, task) in models.items()}
    asked, lacking = [], "{input}"
    for number, row in enumerate(rows, 1):
        name = row.get("task") or options.task
        template = given or known.get(str(name))
        if "input" not in row and (given is None or name is not None):
            _find(models, name and str(name).strip(), f"{place}, row {number}: ")
        if template is not None and (given or template.applies(row)):
            row = template.filled(row, f"{place}, row {number}")
        elif template is not None:
            lacking = template.input
        asked.append(row)
    return asked, lacking


def _tasks_of(rows: Rows, task: str | None, models: Models, place: str) -> list[str]:
    """Return the task of every row, after a check of its codes; empty for an empty input."""
    names = [(text_of(row, "task") or task) if text_of(row, "input") else "" for row in rows]
    for number, (name, row) in enumerate(zip(names, rows, strict=True), 1):
        with raised_as(TaskError, f"{place}, row {number}", TaskError):
            if name != "":
                model, own = _find(models, name)
                model.form.prompt_prefix(own, model.form.codes_in(own, row))  # checks the codes
    return [str(name) for name in names]


def _check_choices(
    choices: Choices, search: Mapping[str, Any], place: str, models: Sequence[Any]
) -> None:
    if search and all(given or not model for given, model in zip(choices, models, strict=True)):
        raise ConfigError(
            "every row has choices, so nothing is generated: remove --beams, --temperature, "
            "--top-p, --max-tokens and --candidates, or the choices"
        )
    checked = set()
    for number, (given, model) in enumerate(zip(choices, models, strict=True), 1):
        if model and given and (kind := (id(model), *given)) not in checked:
            model.choice_ids(given, f"{place}, row {number}")
            checked.add(kind)


def _kind_of_both(questions: str | None, out: Path | None) -> str | None:
    endings = [Path(name).suffix.removeprefix(".") for name in (questions, out) if name]
    kinds = [ending for ending in endings if ending in (*FORMATS, *WORD_FORMATS)]
    if len(set(kinds)) > 1:
        raise ConfigError(f"'{questions}' and --out '{out}' have different formats; set --format")
    return kinds[0] if kinds else None


def _report(
    rows: Rows,
    names: Sequence[str],
    found: Rows,
    metrics: Mapping[str, Sequence[str]],
    choices: Choices,
) -> None:
    """Print the scores of tasks with reference answers, and confusion matrices."""
    answers, references = [row[ANSWER] for row in found], [references_of(row) for row in rows]
    names = [name if own else "" for name, own in zip(names, references, strict=True)]
    scores = score_rows(rows, names, answers, metrics, choices)
    tables: list[Table] = [score_table(scores)] * bool(scores)
    for task in dict.fromkeys(one.task for one in scores) if any(choices) else ():
        places = [p for p, name in enumerate(names) if name == task]
        firsts, own = [references[p][0] for p in places], [answers[p] for p in places]
        if len({*firsts, *own}) <= MOST_LABELS:
            tables.append(confusion_table(task, firsts, own))
    for each in tables:
        make_console(stderr=True).print(each)


def confusion_table(task: str, right: Sequence[str], found: Sequence[str]) -> Table:
    """Return a confusion matrix of labels."""
    labels = sorted({*right, *found})
    table = TextTable(f"{task}: rows are references, columns are answers").numbers("", *labels)
    pairs = list(zip(right, found, strict=True))
    for label in labels:
        table.add(label, then=(pairs.count((label, other)) for other in labels))
    return table
