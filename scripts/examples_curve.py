"""Score unseen tasks with few and with many rows of each: a curve per method and way to adapt.

python scripts/examples_curve.py --out runs/examples
python scripts/examples_curve.py --methods polytropon shared --examples 0 8 --out runs/try
python scripts/examples_curve.py --methods polytropon --modes best_coefficients --out runs/rows

Trainings and adaptations are those of `compare.py`, each in a process of its own. What has ended is
read, not repeated; what was interrupted goes on. OUT/examples.md, examples.csv, examples.svg and
scores.csv are written whenever a training and its adaptations have ended.
"""

import argparse
from typing import TYPE_CHECKING

from comparison.examples import CURVES, MODES, NUMBERS, curve_plans, curve_points, curve_tables
from comparison.methods import REFERENCE, Plan
from comparison.running import COMPARED, add_text_options, comparison_parser
from comparison.tables import to_csv

from mttl.command import READ, exit_with, make_console, natural
from mttl.errors import ConfigError
from mttl.files import write_text
from mttl.libraries import check_libraries

if TYPE_CHECKING:
    from comparison.folder import Comparison

MEANING = (
    "Mean test scores over unseen tasks in per cent, adapted with so many of their rows; in "
    "brackets 95 % intervals by a hierarchical bootstrap over tasks, seeds and few-shot samples."
)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the table."""
    options = parse(arguments)
    check_libraries("matplotlib")
    from comparison.folder import Comparison, carry_out
    from comparison.folds import chosen

    comparison = Comparison.of_options(options)
    folds = chosen(options.folds, options.only_folds)
    if options.modes and REFERENCE not in options.methods:
        raise ConfigError(
            f"--modes {' '.join(options.modes)}: they are ways to adapt {REFERENCE}, which is not "
            "among --methods; add it, or leave --modes out"
        )
    modes = MODES if options.modes is None else options.modes
    plans = curve_plans(options.methods, options.examples, options.seeds, folds, modes)
    text = carry_out(
        comparison,
        plans,
        options.workers,
        lambda: write_curves(comparison, plans, options.examples),
    )
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The table and the figure are in {options.out}", markup=False)
    return 0


def write_curves(comparison: "Comparison", plans: list[Plan], numbers: list[int]) -> str:
    """Write table and figure of what has ended, and return the table as Markdown."""
    from comparison.report import budget, read_scores

    scores = [score for score in read_scores(comparison, plans) if score.side == "unseen"]
    points = curve_points(scores, numbers)
    if not points:
        return ""
    from comparison.examples_figure import examples_figure  # it needs matplotlib

    from mttl.analysis.figures import save_figure

    text = f"{budget(comparison, plans)}{MEANING}\n\n{curve_tables(points)}"
    save_figure(examples_figure(points, REFERENCE), comparison.out / "examples")
    write_text(comparison.out / "examples.md", text)
    write_text(comparison.out / "examples.csv", to_csv(points))
    write_text(comparison.out / "scores.csv", to_csv(scores))
    return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(
        __doc__,
        config="crossfit.yaml",
        out="runs/examples",
        methods=list(CURVES),
    )
    add_text_options(parser)
    parser.group(COMPARED).add_argument(
        "--modes",
        nargs="*",
        choices=MODES,
        metavar="MODE",
        help=f"further ways to adapt {REFERENCE} ({' '.join(MODES)})",
    )
    parser.group(READ).add_argument(
        "--examples",
        type=natural,
        nargs="+",
        default=list(NUMBERS),
        metavar="N",
        help=f"rows of every unseen task ({' '.join(map(str, NUMBERS))})",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
