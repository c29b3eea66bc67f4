"""Train every method with the same budget and seeds, adapt it to all unseen tasks, and tabulate.

python scripts/compare.py --out runs/compare
python scripts/compare.py --folds 5 --search-rates --out runs/folds
python scripts/compare.py --methods polytropon shared --seeds 13 --steps 200 --out runs/try
python scripts/compare.py --methods polytropon --method mine=my_router.yaml --out runs/mine
python scripts/compare.py --skills all --out runs/kinds
python scripts/compare.py --skills lora krona --parameters 400000 --out runs/equal
python scripts/compare.py --runs polytropon=runs/p13,runs/p14 mine=runs/m13,runs/m14 --out runs/both

A method is `pl_train.py -c crossfit.yaml+<fragment>` and then `pl_finetune.py`, each in a process
of its own; with --folds F, so often for each seed. What has ended is read, not repeated; what was
interrupted goes on. --method adds one of your own: a configuration file that is merged onto the
common one, also in adaptation, and may name a class of your own. --runs reads runs that exist, of a
seed each, and what they were adapted to; trained beside them is what --methods and --method name.
Differences are paired by task, seed and few-shot sample.

--skills takes kinds of skills in the place of methods: the files of configs/skills, each merged
onto the common one. What they change and cost is measured on the first seed's run, and stands in
OUT/kinds.md, kinds.json and kinds.svg. --parameters brings all to about as many of them.

The tables are written to OUT/table.md, table.csv and scores.csv whenever a
method has ended.
"""

import argparse

from comparison.methods import (
    ABLATIONS,
    ALL,
    DEFAULT_WAYS,
    EVERY,
    METHODS,
    REFERENCE,
    WAYS,
    check_modes,
    own_methods,
    plan,
)
from comparison.running import COMPARED, add_text_options, comparison_parser

from mttl.command import READ, WORK, exit_with, make_console, positive
from mttl.errors import ConfigError, MttlError
from mttl.libraries import check_libraries

FIRST_KIND = "lora"
# Tasks that one fold trains on thousands of rows are new to another, which gets a few of them.
FEW = 32
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
    check_libraries("matplotlib")
    from comparison.existing import check_pairs, read_runs
    from comparison.folder import Comparison, carry_out
    from comparison.folds import chosen
    from comparison.kinds import kind_methods
    from comparison.report import write_tables
    from comparison.tables import check_rows

    examples = FEW if options.folds and options.examples is None else options.examples
    own = own_methods(options.method, options.modes or ())
    kinds = kind_methods(
        *(options.skills, options.config, options.override),
        n_parameters=options.parameters,
        modes=options.modes or (),
    )
    if twice := sorted(own.keys() & kinds.keys()):
        raise MttlError(
            f"--method {twice[0]}: --skills has a kind of this name; choose another for your own"
        )
    own |= kinds
    shipped = options.methods
    if shipped is None:
        shipped = [] if options.runs or options.skills else list(METHODS)
    names = [*shipped, *own]
    existing = read_runs(options.runs, names)
    everything = [*names, *(runs.name for runs in existing)]
    others = [runs.name for runs in existing] or [
        name for name in (FIRST_KIND, *kinds) if name in kinds
    ]
    first = REFERENCE if REFERENCE in everything or not others else others[0]
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
        n_parameters=options.parameters,
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
        "--method",
        action="append",
        default=[],
        metavar="NAME=FILE[+FILE...]",
        help="a method of your own: its configuration; may be repeated",
    )
    add(
        "--skills",
        nargs="+",
        default=[],
        metavar="KIND",
        help=f"kinds of skills, by the names of files in configs/skills; {EVERY} for every one",
    )
    add(
        "--parameters",
        type=positive,
        metavar="N",
        help="bring the skills of every kind of --skills to about so many parameters",
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
        help=f"the method that others are compared with ({REFERENCE}, or the first of --runs, or "
        f"{FIRST_KIND})",
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
    if options.parameters and not options.skills:
        raise ConfigError("--parameters needs --skills, whose sizes it sets")
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
    if useless and not (options.methods or options.method or options.skills):
        raise ConfigError(
            f"--runs alone trains nothing, so {', '.join(useless)} would change nothing: leave "
            "them out, or name what to train with --methods, --method or --skills"
        )
    return options


if __name__ == "__main__":
    exit_with(main)
