"""How many episodes each method needs until its levels are learned, with the same budget and seeds.

python scripts/sample_efficiency.py --out runs/sample_efficiency
python scripts/sample_efficiency.py --methods polytropon shared --seeds 13 --out runs/try

A method is `pl_train.py -c babyai.yaml+babyai/<method>.yaml`, in a process of its own. What has
ended is read, not repeated; what was interrupted goes on. OUT/table.md, levels.csv and curves.svg
are written whenever a run has ended.
"""

import argparse
from pathlib import Path

from comparison.learning import METHODS
from comparison.running import alone, comparison_parser, run_all

from mttl.command import WORK, exit_with, make_console, positive
from mttl.libraries import check_libraries


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the tables."""
    options = parse(arguments)
    check_libraries("matplotlib", "scipy")
    from comparison.policies import Study

    study = Study(
        out=Path(options.out),
        config=options.config,
        rollouts=options.rollouts,
        overrides=tuple(options.override),
    )
    runs = [(method, seed) for seed in options.seeds for method in options.methods]
    study.check(options.methods)
    with alone(study.out):
        study.keep_settings()
        run_all(
            [run for run in runs if not study.cost(*run).ended],
            lambda run, processes: study.run(*run, processes),
            n_workers=options.workers,
            name=lambda run: f"{run[0]}, seed {run[1]}",
            ended=lambda: study.write_tables(runs, options.rate, options.smoothing),
        )
    text = study.write_tables(runs, options.rate, options.smoothing)
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The tables are in {options.out}", markup=False)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(
        __doc__, config="babyai.yaml", out="runs/sample_efficiency", methods=list(METHODS)
    )
    rollouts_help = "of every run (%(default)s)"
    parser.group(WORK).add_argument(
        "--rollouts", type=positive, default=200, metavar="N", help=rollouts_help
    )
    add = parser.group("how it is counted").add_argument
    add("--rate", type=float, default=0.9, metavar="R", help="success rate to reach (%(default)s)")
    averaged = "rollouts that are averaged (%(default)s)"
    add("--smoothing", type=positive, default=10, metavar="N", help=averaged)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
