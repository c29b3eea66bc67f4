"""Search the intrinsic dimension: the fewest numbers that reach nine tenths of a reference's score.

python scripts/intrinsic_dimension.py --out runs/d90
python scripts/intrinsic_dimension.py -c my.yaml --score 0.8 --low 10 --high 10000 --out runs/d90

Intrinsic skills of growing dimension are trained, four times as many numbers each time, until one
reaches the share of the reference's mean score on the development rows; then the gap between the
last that did not and the first that did is halved, in the logarithm, until it is narrow. The
reference is trained too, or given (--score). All runs have the same rows, steps and seed, and a
rate in inverse proportion to the root of the dimension, from that of skills/intrinsic: a step of
Adam moves every number by about the rate, so that it changes weights as far in any dimension.
Scores are noisy, so that the search takes for granted what need not be: that more numbers score
more.
Runs that have ended are read, not repeated; OUT/d90.md is written after each.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from train_all_kinds import Row, train

from mttl.command import (
    READ,
    WORK,
    WRITTEN,
    add_overrides,
    exit_with,
    make_console,
    make_parser,
    positive,
)
from mttl.config.load import load_config
from mttl.config.skills_schema import Intrinsic
from mttl.errors import ConfigError
from mttl.files import write_text

GROWTH = 4


def main(arguments: list[str] | None = None) -> int:
    """Train what is missing, and print and write the table."""
    options = parse(arguments)
    if options.low > options.high:
        raise ConfigError(f"--low ({options.low}) must not be above --high ({options.high})")
    out = Path(options.out)

    def score(fragment: str, name: str, *more: str) -> Row:
        files = f"{options.config}+{fragment}.yaml+{options.router}.yaml"
        settings = [*options.override, *more]
        return train(files, name, options.steps, options.seed, out, settings)

    reference = options.score
    if reference is None:
        reference = score(options.reference, f"reference-{options.reference}").dev / 100
    rows: dict[int, Row] = {}
    own = load_config(f"{options.config}+skills/intrinsic.yaml", options.override)
    assert isinstance(own.skills, Intrinsic)
    step = own.optim.lr * math.sqrt(own.skills.dimension)

    def reaches(dimension: int) -> bool:
        sizes = f"skills.dimension={dimension}", f"optim.lr={step / math.sqrt(dimension):.3g}"
        row = score("skills/intrinsic", f"dimension-{dimension}", *sizes)
        rows[dimension] = row
        report(rows, 100 * reference, options, None)
        return row.dev >= 100 * options.share * reference

    found = search(reaches, options.low, options.high, options.precision)
    text = report(rows, 100 * reference, options, found)
    make_console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def search(
    reaches: Callable[[int], bool], low: int, high: int, precision: float
) -> tuple[int, int | None]:
    """Return the largest dimension that was too small, and the smallest that is enough, or None.

    Args:
        reaches: Tells whether a dimension is enough.
        low: The first one; where it is enough, 0 is returned as too small.
        high: The last one.
        precision: The two may differ by this factor.
    """
    below, dimension = 0, low
    while not reaches(dimension):
        if dimension == high:
            return high, None
        below, dimension = dimension, min(GROWTH * dimension, high)
    enough = dimension
    while below and enough / below > precision and enough - below > 1:
        middle = round(math.sqrt(below * enough))
        middle = min(max(middle, below + 1), enough - 1)
        if reaches(middle):
            enough = middle
        else:
            below = middle
    return below, enough


def report(
    rows: dict[int, Row],
    reference: float,
    options: argparse.Namespace,
    found: tuple[int, int | None] | None,
) -> str:
    """Write the table of what has ended, and return it as Markdown."""
    goal = options.share * reference
    named = "given" if options.score is not None else f"`{options.reference}`"
    lines = [
        f"Reference ({named}): {reference:.1f} on the development rows; goal {goal:.1f}. "
        f"{options.steps} steps, seed {options.seed}; mean scores over the tasks in per cent.",
        "",
        "| dimension | skill parameters | dev | of the reference | test | minutes |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for dimension, row in sorted(rows.items()):
        share = row.dev / reference if reference else math.inf
        lines.append(
            f"| {dimension} | {row.parameters:,} | {row.dev:.1f} | {share:.2f} | {row.test:.1f} | "
            f"{row.minutes:.1f} |"
        )
    if found is not None:
        below, enough = found
        end = f"d{100 * options.share:.0f} is above {below}"
        if enough is not None:
            end = f"d{100 * options.share:.0f} = {enough}" + (f", above {below}" if below else "")
        lines += ["", f"{end}."]
    text = "\n".join(lines) + "\n"
    write_text(Path(options.out) / "d90.md", text)
    return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.group(READ).add_argument
    add("-c", "--config", default="crossfit.yaml", help="files below the skills (%(default)s)")
    add("--router", default="router/shared", metavar="ROOM/NAME", help="(%(default)s)")
    add("--reference", default="skills/dense", metavar="ROOM/NAME", help="(%(default)s)")
    add("--score", type=fraction, help="the reference's score, instead of training it")
    add_overrides(parser, "settings of all runs; may be repeated, the later wins")
    add = parser.group(WORK).add_argument
    add("--share", type=fraction, default=0.9, help="of the reference's score (%(default)s)")
    add("--low", type=positive, default=16, help="first dimension (%(default)s)")
    add("--high", type=positive, default=65536, help="last dimension (%(default)s)")
    add("--precision", type=float, default=1.25, help="factor between the two (%(default)s)")
    add("--steps", type=positive, default=800, help="optimizer steps of each run (%(default)s)")
    add("--seed", type=int, default=13, help="(%(default)s)")
    out = parser.group(WRITTEN).add_argument
    out("--out", default="runs/d90", metavar="DIR", help="of runs and table (%(default)s)")
    return parser.parse_args(arguments)


def fraction(text: str) -> float:
    """Return a number above 0 and up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError
    return value


if __name__ == "__main__":
    exit_with(main)
