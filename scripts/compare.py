"""Train every method with the same budget and seeds, adapt it to all unseen tasks, and tabulate.

python scripts/compare.py --out runs/compare
python scripts/compare.py --folds 5 --search-rates --out runs/folds
python scripts/compare.py --methods polytropon shared --seeds 13 --steps 200 --out runs/try

A method is `pl_train.py -c crossfit.yaml+<fragment>` and then `pl_finetune.py`, each in a process
of its own; with --folds F, so often for each seed. What has ended is read, not repeated; what was
interrupted goes on. The tables are written to OUT/table.md, table.csv and scores.csv whenever a
method has ended.
"""

import argparse

from comparison.folder import Comparison, carry_out
from comparison.methods import ABLATIONS, DEFAULT_WAYS, METHODS, WAYS, plan
from comparison.report import write_tables
from comparison.running import add_text_options, comparison_parser

from mttl.command import exit_with, make_console, positive
from mttl.libraries import check_libraries

# Tasks that one fold trains on thousands of rows are new to another, which gets a few of them.
FEW = 32


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib")
    examples = FEW if options.folds and options.examples is None else options.examples
    comparison = Comparison.of_options(options, examples, search_rates=options.search_rates)
    plans = plan(options.methods, options.modes, options.seeds, options.folds)
    text = carry_out(comparison, plans, options.workers, lambda: write_tables(comparison, plans))
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(
        __doc__,
        config="crossfit.yaml",
        out="runs/compare",
        methods=list(METHODS),
        ablations=list(ABLATIONS),
    )
    add_text_options(parser)
    add = parser.add_argument
    add(
        "--modes",
        nargs="*",
        default=list(DEFAULT_WAYS),
        choices=WAYS,
        metavar="MODE",
        help=f"further ways to adapt, of {', '.join(WAYS)}, for methods that have them "
        f"({', '.join(DEFAULT_WAYS)})",
    )
    add(
        "--examples",
        type=positive,
        metavar="N",
        help=f"training rows of every unseen task (all; {FEW} with --folds)",
    )
    add(
        "--search-rates",
        action="store_true",
        help="adapt every method with the rates that are best on development tasks",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
