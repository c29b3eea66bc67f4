"""Train every method with the same budget and seeds, adapt it to all unseen tasks, and tabulate.

python scripts/pretrain_backbone.py --gyms data/lexical
python scripts/compare.py --out runs/compare
python scripts/compare.py --methods polytropon shared --seeds 13 --steps 200 --out runs/try

A method is `pl_train.py -c crossfit.yaml+<fragment>` and then `pl_finetune.py`, each in a process
of its own. What has ended is read, not repeated; what was interrupted goes on. The tables are
written to OUT/table.md, table.csv and scores.csv whenever a method has ended.
"""

import argparse
from pathlib import Path

from comparison.folder import Comparison
from comparison.methods import ABLATIONS, METHODS, MODES, REFERENCE, plan
from comparison.report import write_tables
from comparison.running import alone, comparison_parser, run_all

from mttl.command import exit_with, make_console, positive
from mttl.libraries import check_libraries


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib", "scipy")
    comparison = Comparison(
        out=Path(options.out),
        config=options.config,
        steps=options.steps,
        adapt_steps=options.adapt_steps,
        tasks=options.tasks,
        samples=options.samples,
        overrides=tuple(options.override),
    )
    plans = plan(options.methods, options.modes, options.seeds)
    comparison.check(plans)
    with alone(comparison.out):
        comparison.keep_settings()
        run_all(
            [item for item in plans if not comparison.has_ended(item)],
            comparison.run,
            n_workers=options.workers,
            name=lambda item: f"{item.name}, seed {item.seed}",
            ended=lambda: write_tables(comparison, plans),
        )
    make_console().print(write_tables(comparison, plans), markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(
        __doc__,
        config="crossfit.yaml+backbone/denoiser.yaml",
        out="runs/compare",
        methods=list(METHODS),
        ablations=list(ABLATIONS),
    )
    add = parser.add_argument
    add(
        "--modes",
        nargs="*",
        default=list(MODES),
        choices=MODES,
        metavar="MODE",
        help=f"adaptation modes on top of {REFERENCE} (all)",
    )
    add("--steps", type=positive, default=500, help="of training (%(default)s)")
    add("--adapt-steps", type=positive, default=60, help="of each adaptation job (%(default)s)")
    add("--tasks", default="test", help="as for pl_finetune.py (%(default)s)")
    add("--samples", metavar="N[,N...]", help="few-shot samples of every unseen task (all)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
