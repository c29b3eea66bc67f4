"""Search for settings of adaptation on development tasks, or of training, without test rows.

mttl search -c crossfit.yaml+search/polytropon.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml+runs/crossfit/search-all/best.yaml --from runs/crossfit
mttl search -c crossfit.yaml+search/training.yaml --out runs/search

Every trial adapts to all samples of the partition's dev tasks and is scored on their development
rows. Without --from every trial is a training with other settings of the section optim, scored on
the development rows of its tasks. Started again, it goes on; trials.csv and best.yaml hold what is
known so far.
"""

import argparse
import sys

from mttl.commands.adapt import run_jobs
from mttl.commands.options import add_config, add_run, add_shares, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Search, write what was found and print a table; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_jobs("search", "search", given, vars(parse(given)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("search", __doc__)
    add_config(parser, required=False)
    add_run(parser, tasks="dev", out="trials (RUN/search-MODE)", required=False)
    add_shares(parser)
    return parser.parse_args(arguments)
