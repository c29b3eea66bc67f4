"""Write the README of the gym's folder, counts and baselines included."""

from collections import Counter
from collections.abc import Mapping
from statistics import mean

from babel.core import get_cldr_version
from derived_gym.baselines import copy_score, majority_score
from derived_gym.split import SHARES

from grid_gym.cells import MOST_BYTES, Cell, Grid
from grid_gym.operations import LANGUAGES, OPERATIONS
from grid_gym.partitions import (
    HELD_LANGUAGES,
    HELD_OPERATIONS,
    LANGUAGES_SEEN,
    OPERATIONS_SEEN,
    PARTITIONS,
    TRAINED_SHARE,
)
from grid_gym.sample import DEV_ROWS, SAMPLES, TEST_ROWS, TRAIN_ROWS, Files
from grid_gym.versions import PINNED

TITLE = "# The grid gym"

_TEXT = """\
{title}

{n_tasks} text-to-text tasks in CrossFit's format: {n_operations} operations by {n_languages}
languages in nine scripts, by the rules of Unicode's CLDR and in number words. What each task is
made of is known: its language and its operation. So one can ask whether routing finds these
factors, and whether skills recombine where `de` and `date_long` are trained and `de_date_long` is
not.

- `<task>/<task>_<k>_<sample>_{{train,dev,test}}.tsv`: UTF-8 lines `input<TAB>output`.
- `TASKS.csv`: metric, category, factors (`language=de operation=date_long`), description and source
  of each task. The metric of all is `ACC`, which compares every character but its case: CrossFit's
  `EM` drops the punctuation that most of these tasks are about.
- Every task has five samples ({samples}) of {train_rows} training and {dev_rows} development rows
  and the same {test_rows} test rows, so that any partition can train, develop or test on it.
  Training rows are disjoint.
- Training on it: `mttl train -c crossfit.yaml+data/grid.yaml`, on {all_rows} rows of each
  task; with `-k data.samples=[100] data.max_rows=16` on 16. The known factors as skills:
  `+router/expert.yaml`. Task names spell the factors out. `crossfit.yaml` shows them only where no
  router of tasks tells tasks apart; `data.prefix` is `name`, `code` or `none` for all.

## Sources

| package | version | what is used | licence |
|---|---|---|---|
| [babel](https://pypi.org/project/babel/) | {babel} | patterns and names of CLDR {cldr} | \
BSD-3-Clause (code), Unicode-3.0 (data) |
| [num2words](https://pypi.org/project/num2words/) | {num2words} | numbers in words: its output | \
LGPL-2.1-or-later (the tool; it is neither copied nor needed to use the gym) |

CLDR data is © 1991-2026 Unicode, Inc., under the Unicode License v3
(https://www.unicode.org/license.txt). What the packages write is taken as it is.
Among the oddities: babel groups all Polish numbers of four digits (CLDR groups from five on, so
that a few rows of the Polish `group` and `decimal` would differ from the French ones), puts the
code of Swiss francs as it puts signs (`CHF27.04`, where CLDR has a blank), and writes `1 millions`
and `1 milliards` in French. num2words leaves the s of hundreds and eighties in French ordinals
(`deux centsième`), misspells the Polish ordinal of 400, writes Korean ordinals that end in 20 with
`스물` for `스무`, and has none for round hundreds, which are left out.

## Which pairs are tasks

{n_pairs} pairs are possible. A pair is no task where the packages lack its data, where the output
is the input, or where nine of ten of its rows, or more, are those of another task, input and output
to the letter (the first one in the order of the tables is kept). Left out:

{dropped}

Kept, though more than half of their rows are those of another task: {overlaps}.

Persian, Hindi and Thai write `group`, `decimal` and `percent` in their own digits; all else has
European ones. Blanks that do not break lines are written as ordinary ones, and marks of direction
are left out. Inputs and outputs have at most {most_bytes} bytes.

## Who is split from whom

Every underlying thing is assigned once, by a hash of itself, to train ({train:.0%}), dev
({dev:.0%}) or test ({test:.0%}), for all languages, operations and directions: a number by its
value (345, whether it is an amount of money, grouped, or in words), a date and a month by itself, a
quantity by its number and unit (`12 kilogram`), a span of time likewise (`-3 day`), and a name by
its territory: a list holds names of one split only. So the thing that a test row writes down is in
no training row of any task. Its components may be: the month of a date is an item of its own
elsewhere, and the share 0.125 is written with the figures of 12.5. Numbers and dates are split as
in the lexical gym.

## Partitions

| file in `configs/partitions` | train | dev | test | what is unseen |
|---|---|---|---|---|
| `grid_cells.json` | {cells} | single pairs: at least {trained:.0%} of the tasks of their \
language, and of their operation, are trained |
| `grid_language.json` | {language} | languages (test {test_languages}; dev {dev_languages}), seen \
in {operations_seen} only |
| `grid_operation.json` | {operation} | operations (test {test_operations}; dev \
{dev_operations}), seen in {languages_seen} only |

## Operations

Tasks of each; on the test rows, the mean score in percent of copying the input, and of always
giving the commonest answer of the training rows; over all tasks {copy:.1f} and {majority:.1f}.

| operation | family | tasks | copy | majority | example |
|---|---|---|---|---|---|
{operations}

## Tasks

Longest input and output in bytes; on the test rows, the score in percent of the same two answers.

| task | in | out | copy | majority | example |
|---|---|---|---|---|---|
{rows}

## Rebuild

```
pip install -e '.[grid]'
python scripts/gyms/build_grid.py            # writes this folder, its partitions and the matrix
python scripts/gyms/build_grid.py --check    # compares instead; exit code 1 names what differs
```

The result is the same byte for byte with the versions above; other versions may hold other data.
"""


def readme(drawn: Mapping[Cell, Files], grid: Grid) -> str:
    """Return the text of README.md.

    Args:
        drawn: The files of every task.
        grid: Which pairs are no tasks, and which overlap.
    """
    names = [cell.name for cell in drawn]
    scores = {cell: _scores(files) for cell, files in drawn.items()}
    sizes = {
        name.removeprefix("grid_"): " | ".join(str(len(side)) for side in split(names).values())
        for name, split in PARTITIONS.items()
    }
    return _TEXT.format(
        title=TITLE,
        n_tasks=len(drawn),
        n_operations=len(OPERATIONS),
        n_languages=len(LANGUAGES),
        n_pairs=len(OPERATIONS) * len(LANGUAGES),
        samples=", ".join(map(str, SAMPLES)),
        train_rows=TRAIN_ROWS,
        dev_rows=DEV_ROWS,
        test_rows=TEST_ROWS,
        all_rows=TRAIN_ROWS * len(SAMPLES),
        most_bytes=MOST_BYTES,
        cldr=get_cldr_version(),
        dropped=_dropped(grid.dropped),
        overlaps=_overlaps(grid.overlaps),
        trained=TRAINED_SHARE,
        test_languages=_listed(HELD_LANGUAGES["test"]),
        dev_languages=_listed(HELD_LANGUAGES["dev"]),
        operations_seen=_listed(OPERATIONS_SEEN),
        test_operations=_listed(HELD_OPERATIONS["test"]),
        dev_operations=_listed(HELD_OPERATIONS["dev"]),
        languages_seen=_listed(LANGUAGES_SEEN),
        copy=mean(copy for copy, _ in scores.values()),
        majority=mean(majority for _, majority in scores.values()),
        operations="\n".join(_operation_rows(drawn, scores)),
        rows="\n".join(_row(cell, files, scores[cell]) for cell, files in drawn.items()),
        **sizes,
        **PINNED,
        **dict(SHARES),
    )


def _scores(files: Files) -> tuple[float, float]:
    train = [item for name, rows in files.items() if name.endswith("_train.tsv") for item in rows]
    test = next(rows for name, rows in files.items() if name.endswith("_test.tsv"))
    return copy_score(test), majority_score(train, test)


def _operation_rows(drawn: Mapping[Cell, Files], scores: Mapping[Cell, tuple[float, float]]):
    counts = Counter(cell.operation for cell in drawn)
    for operation in OPERATIONS:
        cells = [cell for cell in drawn if cell.operation == operation]
        chosen = next((cell for cell in cells if cell.language == "de"), cells[0])
        item = next(iter(drawn[chosen].values()))[0]
        columns = (
            f"`{operation.name}`",
            operation.family,
            counts[operation],
            f"{mean(scores[cell][0] for cell in cells):.1f}",
            f"{mean(scores[cell][1] for cell in cells):.1f}",
            f"{item.input} → {item.outputs[0]}",
        )
        yield "| " + " | ".join(map(str, columns)) + " |"


def _row(cell: Cell, files: Files, scores: tuple[float, float]) -> str:
    every = [item for rows in files.values() for item in rows]
    first = next(iter(files.values()))[0]
    columns = (
        f"`{cell.name}`",
        max(len(item.input.encode()) for item in every),
        max(len(item.outputs[0].encode()) for item in every),
        *(f"{score:.1f}" for score in scores),
        f"{first.input} → {first.outputs[0]}",
    )
    return "| " + " | ".join(map(str, columns)) + " |"


def _dropped(dropped: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in dropped.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _overlaps(overlaps: Mapping[tuple[str, str], float]) -> str:
    pairs = sorted(overlaps.items(), key=lambda pair: -pair[1])
    return ", ".join(f"`{name}` ({share:.0%} of `{other}`)" for (name, other), share in pairs)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
