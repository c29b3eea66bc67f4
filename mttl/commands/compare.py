"""Train several methods with the same budget and seeds, adapt them to unseen tasks, and compare.

mttl compare --out runs/compare
mttl compare --folds 5 --out runs/folds
mttl compare --methods polytropon shared --seeds 13 --steps 200 --out runs/try
mttl compare --methods polytropon --method mine=my_router.yaml --out runs/mine
mttl compare -c babyai.yaml --methods polytropon shared --out runs/levels
mttl compare runs/seed13 runs/seed14 runs/seed15
mttl compare --runs polytropon=runs/p13,runs/p14 mine=runs/m13,runs/m14 --out runs/both

A method is `mttl train -c crossfit.yaml+<fragment>` and then `mttl adapt`, each in its own process;
with --folds F, F times per seed. For policies (-c babyai.yaml), steps are rollouts. Finished runs
are reused, interrupted ones continue. --method adds a method from a configuration file, which
adaptation uses as well. --runs uses finished runs, one per seed; --methods and --method then name
what is trained in addition. Differences are paired by task, seed and few-shot sample. RUN arguments
without names are runs that differ only in their seeds; their scores are summarised. OUT gets
table.md, table.csv and scores.csv after each method.
"""

import argparse
from pathlib import Path

from mttl.commands.comparison.methods import (
    METHODS,
    POLICY_METHODS,
    REFERENCE,
    VARIANTS,
    custom_methods,
    plan,
)
from mttl.commands.options import LIST, POSITIVE, CommandParser, command
from mttl.io.errors import ConfigError, MttlError
from mttl.runtime.command import make_console, say

# A task with thousands of training rows in one fold is unseen in another, which gets a few of them.
FEW = 32
STEPS, ADAPT_STEPS = 500, 60  # of text-to-text tasks
COMPARED = "what is compared"  # option group
# Options that are valid with --runs alone.
OF_RUNS = ("--runs", "--reference", "--out", "--trust")


def _declare(parser: CommandParser) -> None:
    add = parser.group(COMPARED).add_argument
    help = "runs that differ only in their seeds: print mean and deviation of scores, and exit"
    add("seeds_of_one", nargs="*", type=Path, metavar="RUN", help=help)
    help = f"methods to train (all), of {', '.join(METHODS)}; "
    help += f"for policies of {', '.join(POLICY_METHODS)}"
    add("--methods", nargs="+", choices=METHODS | POLICY_METHODS, metavar="METHOD", help=help)
    help = "custom method with its configuration; may be repeated"
    add("--method", action="append", default=[], metavar="NAME=FILE[+FILE...]", help=help)
    help = "methods with finished runs; shipped methods are then trained only with --methods"
    apart = parser.group(COMPARED).add_mutually_exclusive_group().add_argument
    apart("--runs", **LIST, metavar="NAME=RUN[,RUN...]", help=help)
    help = f"method to compare the others with ({REFERENCE}, or the first of --runs)"
    add("--reference", metavar="NAME", help=help)
    help = f"additional adaptation modes, from {', '.join(VARIANTS)}, for methods that have them "
    help += "(all; none for custom methods)"
    add("--modes", nargs="*", choices=VARIANTS, metavar="MODE", help=help)
    add = parser.read.add_argument
    help = "the common configuration (%(default)s)"
    add("-c", "--config", default="crossfit.yaml", metavar="FILE[+FILE...]", help=help)
    help = "settings of all runs; the settings that define an adaptation variant take precedence"
    parser.add_overrides(help)
    add("--tasks", default="test", help="new tasks, as for mttl adapt (%(default)s)")
    add("--samples", metavar="N[,N...]", help="few-shot samples of each unseen task (all)")
    help = f"training rows of each unseen task (all; {FEW} with --folds)"
    add("--examples", **POSITIVE, help=help)
    add = parser.work.add_argument
    help = "seeds of training and adaptation (13 14 15)"
    add("--seeds", type=int, nargs="+", default=[13, 14, 15], metavar="N", help=help)
    help = f"optimizer steps of training ({STEPS}); rollouts of policies (those of the file)"
    add("--steps", **POSITIVE, help=help)
    help = f"optimizer steps of each adaptation ({ADAPT_STEPS}); rollouts of policies"
    add("--adapt-steps", **POSITIVE, help=help)
    help = "cross-validation: train F times, with every task unseen once"
    apart("--folds", **dict(POSITIVE, metavar="F"), help=help)
    help = "do not score the training tasks (for large backbones, where scoring is slow)"
    add("--unseen-only", action="store_true", help=help)
    help = "parallel runs, which share the CPU cores equally (%(default)s)"
    add("--workers", **POSITIVE, default=2, help=help)
    help = "output folder (%(default)s)"
    parser.written.add_argument("--out", default="runs/compare", metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Run the missing trainings and adaptations; print and write the tables."""
    words = [word.partition("=")[0] for word in options.arguments if word.startswith("-")]
    useless = [word for word in words if not any(one.startswith(word) for one in OF_RUNS)]
    if options.runs and useless and not (options.methods or options.method):
        raise ConfigError(
            f"--runs trains nothing, so {', '.join(useless)} would have no effect: remove it, or "
            "name methods to train with --methods or --method"
        )
    from mttl.commands.comparison.existing import check_pairs, read_runs, summary

    if options.seeds_of_one:
        make_console().print(summary(options.seeds_of_one), markup=False, soft_wrap=True)
        return
    from mttl.commands.comparison.comparison_folder import MethodComparison, carry_out
    from mttl.commands.comparison.policy_comparison import PolicyComparison
    from mttl.commands.comparison.result_tables import write_tables
    from mttl.commands.comparison.tables import check_rows
    from mttl.config.babyai_schema import BabyAIConfig
    from mttl.config.load import load_any_config

    kind, methods, budget = MethodComparison, METHODS, (STEPS, ADAPT_STEPS)
    common = load_any_config(options.config, options.override, as_written=True)
    if isinstance(common, BabyAIConfig):
        kind, methods = PolicyComparison, POLICY_METHODS
        assert common.trainer.max_epochs is not None  # required for policies
        budget = common.trainer.max_epochs, common.adapt.n_updates
    own = custom_methods(options.method, options.modes or ())
    shipped = methods if options.methods is None and not options.runs else options.methods or ()
    if other := [name for name in shipped if name not in methods]:
        raise MttlError(
            f"--methods {other[0]} does not exist for '{options.config}'; choose from "
            f"{', '.join(methods)}"
        )
    names = [*shipped, *own]
    existing = read_runs(options.runs, names)
    everything = [*names, *(runs.name for runs in existing)]
    first = REFERENCE if REFERENCE in everything or not existing else existing[0].name
    reference = options.reference or first
    if reference not in everything:
        raise MttlError(
            f"the reference {reference} is not among the compared methods: add it to --methods, or "
            f"choose --reference from {', '.join(everything)}"
        )
    comparison = kind(
        out=Path(options.out),
        config=options.config,
        steps=options.steps or budget[0],
        adapt_steps=options.adapt_steps or budget[1],
        tasks=options.tasks,
        samples=options.samples,
        overrides=tuple(options.override),
        examples=FEW if options.folds and options.examples is None else options.examples,
        n_folds=options.folds,
        unseen_only=options.unseen_only,
        methods=methods | own,
        reference=reference,
    )
    folds = (0,) if options.folds is None else range(1, options.folds + 1)
    plans = plan(names, options.modes, options.seeds, folds, comparison.methods)
    if existing:
        planned = [(item.name, item.seed) for item in plans]
        check_pairs([*planned, *((r.name, s) for r in existing for s in r.seeds)], reference)
        scores = [score for runs in existing for score in runs.scores]
        check_rows(scores)
        if plans:
            comparison.check_scored_rows(scores)
    text = carry_out(
        comparison, plans, options.workers, lambda: write_tables(comparison, plans, existing)
    )
    make_console().print(text, markup=False, soft_wrap=True)
    say(f"The tables are in {options.out}")
