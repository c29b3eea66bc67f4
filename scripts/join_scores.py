"""Make the tables and the figure of comparisons anew from the scores that they kept.

python scripts/join_scores.py docs/measured/lexical_folds --out runs/again
python scripts/join_scores.py runs/monday runs/tuesday --out runs/both

A folder is the --out of compare.py or examples_curve.py. Its config.yaml, comparison.yaml and
scores.csv are read, so what several machines have measured, or one in several days, becomes one
table; of kinds of skills kinds.json too, with their sizes and costs. All must be of one
configuration and one budget. OUT has the same files, and can be joined again. Nothing is trained.
--beside sets a comparison of the same tasks that was made otherwise beside them, pair by pair.
"""

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.kept import (
    CONFIG,
    OWN,
    SCORES,
    SETTINGS,
    beside,
    categories_of,
    join,
    own_methods_in,
)
from comparison.methods import REFERENCE
from comparison.running import COMPARED
from comparison.tables import (
    Score,
    check_rows,
    label,
    markdown,
    mean_cell,
    mean_of,
    paired_difference,
    task_table,
    to_csv,
)

from mttl.command import READ, WRITTEN, exit_with, make_console, make_parser
from mttl.errors import MttlError
from mttl.files import write_text
from mttl.libraries import check_libraries

if TYPE_CHECKING:
    from comparison.kinds import KindLine

CURVE = re.compile(r"-(\d+)$")  # a way to adapt with so many rows
MEANING = (
    "Mean test scores over tasks in per cent; in brackets 95 % intervals, of the paired difference "
    "in the columns after, by a hierarchical bootstrap over tasks, seeds and few-shot samples. "
    "A training is of one seed and one fold."
)


def main(arguments: list[str] | None = None) -> int:
    """Read the folders, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib")
    scores = join(options.folders)
    out: Path = options.out
    numbers = sorted({int(found[1]) for x in scores if (found := CURVE.search(x.mode))})
    if numbers and (whole := sorted({x.method for x in scores if not CURVE.search(x.mode)})):
        raise MttlError(
            "some folders hold curves over rows, and others tables of methods, here of "
            f"{', '.join(whole)}: join the ones and the others apart"
        )
    if numbers and (options.reference or options.categories or options.beside):
        raise MttlError(
            "--reference, --categories and --beside are for tables of methods, and these folders "
            f"hold curves over rows, whose differences are to {REFERENCE}: leave them out"
        )
    names = [text.partition("=")[0] for text in options.beside]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MttlError(f"--beside {twice[0]}: two folders have this name; give each its own")
    others = [beside(options.folders[0], scores, text) for text in options.beside]
    shown = [*scores, *(score for own, _ in others for score in own)]
    check_rows(shown)
    categories = categories_of(options.folders[0]) if options.categories else {}
    text = (
        curves(scores, numbers, out)
        if numbers
        else table(shown, options.reference or REFERENCE, out, categories, [x for _, x in others])
    )
    if kinds := read_costs(options.folders, scores):
        text += f"\n{write_costs(kinds, out)}"
    kept = {name: options.folders[0] / name for name in (CONFIG, SETTINGS)}
    own = own_methods_in(options.folders).values()
    for name, path in (kept | {f"{OWN}/{path.name}": path for path in own}).items():
        (out / name).parent.mkdir(exist_ok=True)
        if path.resolve() != (out / name).resolve():
            shutil.copyfile(path, out / name)
    write_text(out / SCORES, to_csv(scores))
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The table and the figure are in {out}", markup=False)
    return 0


def table(
    scores: Sequence[Score],
    reference: str,
    out: Path,
    categories: Mapping[str, str],
    notes: Sequence[str] = (),
) -> str:
    """Write table and figure of methods on seen and unseen tasks, and return the tables.

    Unseen tasks have a row each, or one for each of the categories that are given; notes stand
    before the table.

    Raises:
        MttlError: If nothing is of the reference.
    """
    from comparison.figure import Dots, comparison_figure  # they need matplotlib

    from mttl.analysis.figures import save_figure

    of: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        of.setdefault((score.method, score.mode), []).append(score)
    # Methods, then further ways to adapt them.
    columns = sorted((key for key in of if key[1]), key=lambda key: key[1] != "all")
    named = {label(*key): key for key in columns}
    if reference not in named:
        raise MttlError(
            f"--reference {reference}: there is no score of it; there are {', '.join(named)}"
        )
    whose, _ = named[reference]
    rows, dots = [], []
    for method, mode in columns:
        seen = of.get((method, ""), []) if mode == "all" else []
        unseen = of[method, mode]
        differences = [
            paired_difference(seen, of.get((whose, ""), [])),
            paired_difference(unseen, of[named[reference]]),
        ]
        shown = [
            "" if own else mean_cell(difference, "+")
            for own, difference in zip(
                (method == whose, (method, mode) == named[reference]), differences, strict=True
            )
        ]
        means = [mean_cell(mean_of(side)) if side else "" for side in (seen, unseen)]
        trainings = {(score.seed, score.fold) for score in unseen}
        name = label(method, mode)
        rows.append([f"`{name}`", str(len(trainings)), means[0], shown[0], means[1], shown[1]])
        dots.append(Dots.of(name, [seen, unseen], differences))
    save_figure(comparison_figure(dots, [whose, reference]), out / "comparison")
    heads = ["method", "trainings", "seen", f"− `{whose}`", "unseen", f"− `{reference}`"]
    text = "\n".join([MEANING, *notes, "", markdown(heads, rows)])
    whole = [key for key in columns if key[1] == "all"]
    unseen = [score for score in scores if (score.method, score.mode) in whole]
    if categories:
        text += f"\nUnseen tasks by category:\n\n{category_table(unseen, whole, categories)}"
    else:
        text += f"\nUnseen tasks:\n\n{task_table(unseen, whole)}"
    write_text(out / "table.md", text)
    return text


def read_costs(folders: Sequence[Path], scores: Sequence[Score]) -> "list[KindLine]":
    """Read what kinds of skills cost, where a folder tells; a later folder's row of a kind wins.

    What they reach is of all the scores.
    """
    from comparison.kinds import read_kinds, rescored

    files = [path for folder in folders if (path := folder / "kinds.json").is_file()]
    lines = {line.kind: line for path in files for line in read_kinds(path)}
    return [rescored(line, scores) for line in lines.values()]


def write_costs(kinds: "Sequence[KindLine]", out: Path) -> str:
    """Write sizes and costs of kinds of skills, and the figure of both, and return the table."""
    from comparison.kind_figures import kinds_figure  # it needs matplotlib
    from comparison.kinds import cost_table, kinds_json

    from mttl.analysis.figures import save_figure

    save_figure(kinds_figure(kinds), out / "kinds")
    write_text(out / "kinds.json", kinds_json(kinds))
    text = cost_table(kinds)
    write_text(out / "kinds.md", text)
    return text


def category_table(
    scores: Sequence[Score], columns: Sequence[tuple[str, str]], categories: Mapping[str, str]
) -> str:
    """Return a row per category, the means of its tasks, and the number of those."""
    tasks: dict[str, list[str]] = {}
    for task in dict.fromkeys(score.task for score in scores):
        if task not in categories:
            raise MttlError(
                f"--categories: task '{task}' is not in the gym of the first folder; leave the "
                "option out, or name first the folder of a comparison on the gym that has it"
            )
        tasks.setdefault(categories[task], []).append(task)
    rows = []
    for category, own in tasks.items():
        kept = [
            [x for x in scores if x.task in own and (x.method, x.mode) == key] for key in columns
        ]
        rows.append(
            [category, str(len(own)), *(f"{mean_of(x).mean:.1f}" if x else "" for x in kept)]
        )
    heads = ["category", "tasks", *(f"`{label(*column)}`" for column in columns)]
    return markdown(heads, rows)


def curves(scores: Sequence[Score], numbers: Sequence[int], out: Path) -> str:
    """Write table and figure of scores by rows of each unseen task, and return the tables."""
    from comparison.examples import curve_points, curve_tables
    from comparison.examples_figure import examples_figure  # it needs matplotlib

    from mttl.analysis.figures import save_figure

    points = curve_points(scores, numbers)
    save_figure(examples_figure(points, REFERENCE), out / "examples")
    text = f"{MEANING}\n\n{curve_tables(points)}"
    write_text(out / "examples.md", text)
    return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.group(READ).add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="of a comparison"
    )
    parser.group(COMPARED).add_argument(
        "--reference",
        metavar="NAME",
        help="the method that others are compared with, or a way to adapt one as 'METHOD: WAY' "
        f"({REFERENCE})",
    )
    parser.group(COMPARED).add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a comparison of the same tasks with other settings, which the table names; its "
        "methods are called METHOD, NAME; may be repeated",
    )
    parser.group(READ).add_argument(
        "--categories",
        action="store_true",
        help="a row per category of unseen tasks, by the TASKS.csv of their gym, not one per task",
    )
    parser.group(WRITTEN).add_argument(
        "--out",
        type=Path,
        default=Path("runs/joined"),
        metavar="DIR",
        help="the folder of all (%(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
