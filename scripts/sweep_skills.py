"""Train kinds of skills at several densities, numbers of rows or rates, and tabulate the scores.

python scripts/sweep_skills.py density --out runs/density
python scripts/sweep_skills.py rows --skills lora ia3 sparse --out runs/rows
python scripts/sweep_skills.py rates --skills all --seeds 13 --out runs/rates

A density is the share of entries that a sparse skill changes; rows are those of each training task,
and all are scored; rates are factors on what a kind's file says, in training and adaptation.
Trainings and adaptations are those of `compare.py --skills`: what has ended is read, not repeated,
and what was interrupted goes on. OUT/sweep.md, sweep.json and sweep.svg are written whenever a
training and its adaptation have ended.
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from comparison.methods import EVERY, Plan, plan
from comparison.running import COMPARED, add_text_options, comparison_parser
from comparison.sweeps import SWEEPS, Sweep, sweep_table, swept

from mttl.command import exit_with, make_console
from mttl.files import write_text
from mttl.libraries import check_libraries

if TYPE_CHECKING:
    from comparison.folder import Comparison

MEANING = "Mean test scores over tasks in per cent, with Student's 95 % interval over seeds."


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print and write the table."""
    options = parse(arguments)
    check_libraries("matplotlib")
    from comparison.folder import Comparison, carry_out
    from comparison.folds import chosen
    from comparison.kinds import kind_methods

    sweep: Sweep = SWEEPS[options.sweep]
    kinds = kind_methods(options.skills, options.config, options.override)
    values = options.values or sweep.values
    runs = swept(sweep, values, kinds, options.config, options.override)
    methods = {name: method for name, (_, _, method) in runs.items()}
    comparison = Comparison.of_options(options, methods=methods, reference=next(iter(methods)))
    folds = chosen(options.folds, options.only_folds)
    plans = plan(list(methods), (), options.seeds, folds, methods)

    def write() -> str:
        return write_sweep(comparison, plans, sweep, runs)

    text = carry_out(comparison, plans, options.workers, write)
    make_console().print(text, markup=False, soft_wrap=True)
    make_console().print(f"The table and the figure are in {options.out}", markup=False)
    return 0


def write_sweep(comparison: "Comparison", plans: list[Plan], sweep: Sweep, runs: dict) -> str:
    """Write table and figure of what has ended, and return the table as Markdown."""
    from comparison.kinds import known, seed_mean
    from comparison.report import budget, read_scores

    scores = read_scores(comparison, plans)
    if not scores:
        return ""
    from comparison.kind_figures import Dot, sweep_figure  # it needs matplotlib

    from mttl.analysis.figures import save_figure

    dots = []
    for name, (kind, value, _) in runs.items():
        own = [score for score in scores if score.method == name]
        sides = [[x for x in own if x.side == side] for side in ("seen", "unseen")]
        if own:
            dots.append(Dot(kind, value, *map(seed_mean, sides)))
    text = f"{budget(comparison, plans)}{MEANING}\n{sweep_table(sweep, runs, scores)}"
    save_figure(sweep_figure(dots, sweep.about), comparison.out / "sweep")
    rows = json.dumps([known(asdict(dot)) for dot in dots], indent=1)
    write_text(comparison.out / "sweep.json", rows + "\n")
    write_text(comparison.out / "sweep.md", text)
    return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = comparison_parser(__doc__, config="crossfit.yaml", out="runs/sweep")
    add_text_options(parser)
    add = parser.group(COMPARED).add_argument
    add("sweep", choices=SWEEPS, help="what changes")
    add(
        "--skills",
        nargs="+",
        metavar="KIND",
        help=f"names of files in configs/skills, or {EVERY} ({EVERY}; of densities, sparse)",
    )
    add("--values", nargs="+", type=float, metavar="X", help="what it takes (see the docs)")
    options = parser.parse_args(arguments)
    options.skills = options.skills or (["sparse"] if options.sweep == "density" else [EVERY])
    return options


if __name__ == "__main__":
    exit_with(main)
