"""Train every method with the same budget and seeds, adapt it to all unseen tasks, and tabulate.

mttl compare --out runs/compare
mttl compare --folds 5 --search-rates --out runs/folds
mttl compare --methods polytropon shared --seeds 13 --steps 200 --out runs/try
mttl compare --methods polytropon --method mine=my_router.yaml --out runs/mine
mttl compare runs/seed13 runs/seed14 runs/seed15
mttl compare --runs polytropon=runs/p13,runs/p14 mine=runs/m13,runs/m14 --out runs/both

A method is `mttl train -c crossfit.yaml+<fragment>` and then `mttl adapt`, each in a process
of its own; with --folds F, so often for each seed. What has ended is read, not repeated; what was
interrupted goes on. --method adds one of your own: a configuration file that is merged onto the
common one, also in adaptation, and may name a class of your own. --runs reads runs that exist, of a
seed each, and what they were adapted to; trained beside them is what --methods and --method name.
Differences are paired by task, seed and few-shot sample. Runs without a name, which
differ in their seeds alone, are summarised: mean and deviation of every task.

The tables are written to OUT/table.md, table.csv and scores.csv whenever a
method has ended.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mttl.commands.options import (
    READ,
    WORK,
    WRITTEN,
    CommandParser,
    add_overrides,
    make_parser,
    positive,
    processes,
)
from mttl.comparison.methods import (
    ABLATIONS,
    ALL,
    DEFAULT_WAYS,
    METHODS,
    REFERENCE,
    WAYS,
    check_modes,
    own_methods,
    plan,
)
from mttl.errors import ConfigError, MttlError
from mttl.runtime.command import make_console

# Tasks that one fold trains on thousands of rows are new to another, which gets a few of them.
FEW = 32
COMPARED = "what is compared"  # a group of options
# What has no meaning where nothing is trained.
TRAINING = {
    **{"config": "-c", "seeds": "--seeds", "workers": "--workers", "override": "-k"},
    **{"steps": "--steps", "adapt_steps": "--adapt-steps", "tasks": "--tasks"},
    **{"samples": "--samples", "examples": "--examples", "modes": "--modes"},
    "unseen_only": "--unseen-only",
}


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    if options.seeds_of_one:
        from mttl.comparison.summary import summary

        make_console().print(summary(options.seeds_of_one), markup=False, soft_wrap=True)
        return 0
    from mttl.comparison.comparison_folder import Comparison, carry_out
    from mttl.comparison.existing import check_pairs, read_runs
    from mttl.comparison.folds import chosen
    from mttl.comparison.result_tables import write_tables
    from mttl.comparison.tables import check_rows

    examples = FEW if options.folds and options.examples is None else options.examples
    own = own_methods(options.method, options.modes or ())
    shipped = options.methods
    if shipped is None:
        shipped = [] if options.runs else list(METHODS)
    names = [*shipped, *own]
    existing = read_runs(options.runs, names)
    everything = [*names, *(runs.name for runs in existing)]
    first = REFERENCE if REFERENCE in everything or not existing else existing[0].name
    reference = options.reference or first
    if reference not in everything:
        raise MttlError(
            f"--methods must contain {reference}: differences are taken to it. --reference names "
            "another"
        )
    comparison = Comparison.of_options(
        options,
        examples,
        search_rates=options.search_rates,
        unseen_only=options.unseen_only,
        methods=ALL | own,
        reference=reference,
    )
    modes = list(DEFAULT_WAYS) if options.modes is None else options.modes
    folds = chosen(options.folds, options.only_folds)
    plans = plan(names, modes, options.seeds, folds, comparison.methods)
    check_modes(options.modes or (), plans)
    if existing:
        planned = [(item.name, item.seed) for item in plans]
        check_pairs([*planned, *((r.name, s) for r in existing for s in r.seeds)], reference)
        scores = [score for runs in existing for score in runs.scores]
        check_rows(scores)
        if plans:
            tasks = set(comparison.gym.tasks())
            check_rows([x for x in scores if x.task in tasks], comparison.gym.digest)
    text = carry_out(
        comparison, plans, options.workers, lambda: write_tables(comparison, plans, existing)
    )
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}", markup=False)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        ConfigError: If options do not go together.
    """
    parser = comparison_parser(
        "compare",
        __doc__,
        config="crossfit.yaml",
        out="runs/compare",
        methods=list(METHODS),
        ablations=list(ABLATIONS),
    )
    add_text_options(parser)
    parser.set_defaults(methods=None)
    add = parser.group(COMPARED).add_argument
    add(
        "seeds_of_one",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="runs of one configuration: print the mean and deviation of their scores, and exit",
    )
    add(
        "--method",
        action="append",
        default=[],
        metavar="NAME=FILE[+FILE...]",
        help="a method of your own: its configuration; may be repeated",
    )
    add(
        "--runs",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=RUN[,RUN...]",
        help="methods whose runs exist; without --methods none that ships is trained",
    )
    add(
        "--reference",
        metavar="NAME",
        help=f"the method that others are compared with ({REFERENCE}, or the first of --runs)",
    )
    add(
        "--modes",
        nargs="*",
        choices=WAYS,
        metavar="MODE",
        help=f"further ways to adapt, of {', '.join(WAYS)}, for methods that have them "
        f"({', '.join(DEFAULT_WAYS)}; of your own, none)",
    )
    parser.group(READ).add_argument(
        "--examples",
        type=positive,
        metavar="N",
        help=f"training rows of every unseen task (all; {FEW} with --folds)",
    )
    parser.group(WORK).add_argument(
        "--search-rates",
        action="store_true",
        help="adapt every method with the rates that are best on development tasks",
    )
    parser.group(WORK).add_argument(
        "--unseen-only",
        action="store_true",
        help="do not score the tasks that are trained, where that takes longer than to train",
    )
    options = parser.parse_args(arguments)
    if not options.runs:
        return options
    if options.folds or options.search_rates:
        name = "--folds" if options.folds else "--search-rates"
        raise ConfigError(
            f"--runs reads runs as they stand, and {name} is of trainings that this command makes: "
            "leave one of them out"
        )
    # A second reading has no defaults, and tells what was given.
    given = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(TRAINING)))
    useless = [option for name, option in TRAINING.items() if getattr(given, name) is not None]
    if useless and not (options.methods or options.method):
        raise ConfigError(
            f"--runs alone trains nothing, so {', '.join(useless)} would change nothing: leave "
            "them out, or name what to train with --methods or --method"
        )
    return options


def comparison_parser(
    name: str,
    description: str | None,
    *,
    config: str,
    out: str,
    methods: Sequence[str] = (),
    ablations: Sequence[str] = (),
) -> CommandParser:
    """Return a command line with what all comparisons take; without methods, no choice of them."""
    parser = make_parser(name, description)
    if methods:
        _add_methods(parser, methods, ablations)
    config_help = "the common configuration (%(default)s)"
    parser.group(READ).add_argument(
        "-c", "--config", default=config, metavar="FILE[+FILE...]", help=config_help
    )
    add_overrides(parser, "settings of all runs; ways to adapt keep those that make them")
    add = parser.group(WORK).add_argument
    seeds_help = "of training and adaptation (13 14 15)"
    add("--seeds", type=int, nargs="+", default=[13, 14, 15], metavar="N", help=seeds_help)
    add(
        "--workers",
        type=processes,
        default=2,
        metavar="N",
        help="runs at a time, each on its share of the cores (%(default)s)",
    )
    parser.group(WRITTEN).add_argument(
        "--out", default=out, metavar="DIR", help="the folder of all (%(default)s)"
    )
    return parser


def _add_methods(parser: CommandParser, methods: Sequence[str], ablations: Sequence[str]) -> None:
    more = f"; and the ablations {', '.join(ablations)} (all but those)" if ablations else " (all)"
    parser.group(COMPARED).add_argument(
        "--methods",
        nargs="+",
        default=list(methods),
        choices=[*methods, *ablations],
        metavar="METHOD",
        help=f"of {', '.join(methods)}{more}",
    )


def add_text_options(parser: CommandParser, *, folds: bool = True) -> None:
    """Let a command line take what comparisons on a gym take; some know no folds."""
    add = parser.group(READ).add_argument
    add("--tasks", default="test", help="as for mttl adapt (%(default)s)")
    add("--samples", metavar="N[,N...]", help="few-shot samples of every unseen task (all)")
    add = parser.group(WORK).add_argument
    add("--steps", type=positive, default=500, metavar="N", help="of training (%(default)s)")
    steps_help = "of each adaptation job (%(default)s)"
    add("--adapt-steps", type=positive, default=60, metavar="N", help=steps_help)
    if not folds:
        return
    add(
        "--folds",
        type=positive,
        metavar="F",
        help="train F times, so that every task of the partition is unseen once",
    )
    add(
        "--only-folds",
        nargs="+",
        type=positive,
        metavar="N",
        help="of these folds, from 1 on: the others on another machine or day (all)",
    )
