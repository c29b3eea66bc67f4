"""Search for settings of adaptation on development tasks, or of training, without test rows.

mttl search -c crossfit.yaml+search/polytropon.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml+runs/crossfit/search-all/best.yaml --from runs/crossfit
mttl search -c crossfit.yaml+search/training.yaml --out runs/search

Every trial adapts to all samples of the partition's dev tasks; without --from it is a training
with other settings of the section optim. Both are scored on development rows. Started again, it
goes on; trials.csv and best.yaml hold what is known so far.
"""

import argparse

from mttl.commands.adapt import run_jobs
from mttl.commands.options import CommandParser, command


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False)
    parser.add_run(tasks="dev", out="trials (RUN/search-MODE)", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Search, write what was found and print a table."""
    run_jobs("search", "search", options)
