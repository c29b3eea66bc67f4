"""Compare ways to route in a library on unseen tasks, beside skills that were trained together.

python scripts/compare_library.py --out runs/library -k data.prefix=name
python scripts/compare_library.py --rows polytropon arrow --out runs/try -k data.prefix=name

For each seed: a run of `router: private` over the training tasks, whose tasks become the members of
a library; runs of these members under every router (`library.py run`); a skill for each of
--clusters groups of members, which change alike (mbc) or were drawn (random_clusters), and a
library of these skills; and Polytropon, C-Poly, Shared and SMEAR, trained as long. Each is asked
unseen tasks

- with 0 rows: as they come. Nothing is trained. The row of a router of tasks is the mean of all.
- with K rows of each task (--examples): what has parameters of its own for a task learns them
  (`polytropon_row`, `row`, `cat`, `lorahub`); `retrieval_examples` looks for members of similar
  tasks; `polytropon`, `c_poly`, `shared`, `smear` and the clusters train row and skills. `own` is
  a fresh LoRA of the task, the oracle. Others have nothing that depends on a task, and no use for
  rows.

Routers of tokens and prompts know the task by what stands in front of inputs, and all should read
the same: hence data.prefix=name, where inputs themselves do not tell.

Every command is a process of its own; what has ended is read, not repeated, and what was
interrupted goes on. OUT/library.md, library.csv, library.svg and scores.csv are written whenever
something has ended; at the end a query's time and memory are measured.
"""

import argparse

from comparison.libraries import (
    ALL_ROWS,
    METHODS,
    ROWS,
    VARIANTS,
    LibraryComparison,
    library_plans,
)
from comparison.methods import REFERENCE
from comparison.running import COMPARED, add_text_options, comparison_parser

from mttl.command import READ, WORK, exit_with, make_console, natural, positive
from mttl.errors import ConfigError
from mttl.libraries import check_libraries


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib", "sklearn")
    from comparison.folder import carry_out
    from comparison.library_report import write_library_tables

    comparison = LibraryComparison.of_options(
        options, methods=METHODS, clusters=options.clusters, n_seen=options.seen
    )
    plans = library_plans(options.rows, options.examples, options.seeds)

    def write() -> str:
        return write_library_tables(comparison, plans, options.rows, options.examples)

    text = carry_out(comparison, plans, options.workers, write)
    comparison.measure([item for item in plans if item.seed == options.seeds[0]])
    text = write()
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The tables and the figure are in {options.out}", markup=False)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        ConfigError: If options do not go together.
    """
    parser = comparison_parser(__doc__, config="crossfit.yaml", out="runs/library")
    add_text_options(parser, folds=False)
    parser.group(COMPARED).add_argument(
        "--rows",
        nargs="+",
        default=list(ROWS),
        choices=list(ALL_ROWS),
        metavar="ROW",
        help=f"of {', '.join(ROWS)}; and the variants {', '.join(VARIANTS)} (all but those)",
    )
    parser.group(READ).add_argument(
        "--examples",
        type=natural,
        nargs="+",
        default=[0, 16],
        metavar="N",
        help="rows of every unseen task (0 16)",
    )
    parser.group(WORK).add_argument(
        "--clusters", type=positive, default=8, metavar="N", help="of members (%(default)s)"
    )
    parser.group(WORK).add_argument(
        "--seen", type=positive, metavar="N", help="ask for so many training tasks (all)"
    )
    options = parser.parse_args(arguments)
    options.folds = None
    if REFERENCE not in options.rows:
        raise ConfigError(f"--rows must contain {REFERENCE}: differences are taken to it")
    return options


if __name__ == "__main__":
    exit_with(main)
