"""Writes examples given as pairs of texts as a task of a gym."""

import re
from collections.abc import Sequence
from pathlib import Path

from mttl.io.errors import TaskError
from mttl.io.files import write_table, write_text
from mttl.metrics.metric_names import check_metric
from mttl.tasks.folder import Gym
from mttl.tasks.rows import JSON_LINES, line_of

Example = tuple[str, str]


def split_examples(
    examples: Sequence[Example], dev: Sequence[Example] | None = None
) -> tuple[list[Example], list[Example]]:
    """Return the rows to train on and those to choose the weights by.

    Without ``dev``, every second example is kept for it: CrossFit's 32 examples are 16 and 16.
    """
    for name, pairs in (("examples", examples), ("dev", dev)):
        for place, pair in enumerate(() if pairs is None else pairs):
            _check(pair, f"{name}[{place}]")
    own = (examples[::2], examples[1::2]) if dev is None else (examples, dev)
    if not all(own):
        raise TaskError(
            f"examples holds {len(examples)} pairs; there must be some to train on, and some to "
            "choose the weights by: every second one, or those given as dev"
        )
    return list(own[0]), list(own[1])


def write_examples(
    folder: Path,
    task: str,
    training: Sequence[Example],
    development: Sequence[Example],
    *,
    metric: str = "EM",
    description: str | None = None,
    options: Sequence[str] = (),
    factors: Sequence[str] = (),
) -> Gym:
    """Write a gym of one task, sample 0."""
    if not re.fullmatch(r"[\w-][\w.-]*", task):
        raise TaskError(f"task ('{task}') must be a name of letters, digits, '_', '-' and '.'")
    check_metric(metric, TaskError)
    for split, rows in (("train", training), ("dev", development)):
        path = folder / task / f"{task}_{len(training)}_0_{split}{JSON_LINES}"
        lines = [line_of(JSON_LINES, source, [answer]) for source, answer in rows]
        write_text(path, "".join(lines))
    if any("|" in option for option in options):
        raise TaskError(f"options {list(options)}: none may hold a bar (|), which joins them")
    row = {"task": task, "metric": metric, "description": description}
    row |= {"options": "|".join(options), "factors": " ".join(factors)}
    write_table(folder / "TASKS.csv", list(row), [row])
    return Gym(folder)


def _check(pair: object, place: str) -> None:
    two = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
    if not two or not all(isinstance(text, str) for text in pair):  # type: ignore[union-attr]
        raise TaskError(f"{place} is {pair!r}; it must be a pair of texts: (input, output)")
    for name, text in zip(("input", "output"), pair, strict=True):  # type: ignore[arg-type]
        if not text.strip():
            raise TaskError(f"{place} has an empty {name}; leave that example out")
