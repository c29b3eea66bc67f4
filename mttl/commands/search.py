"""Search hyperparameters of adaptation or training on development rows only.

mttl search -c crossfit.yaml+search/polytropon.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml+runs/crossfit/search-all/best.yaml --from runs/crossfit
mttl search -c crossfit.yaml+search/training.yaml --out runs/search
mttl search -c crossfit.yaml+search/ranges.yaml --from runs/crossfit --storage shared/study.log

Each trial adapts to all samples of the partition's dev tasks; without --from it is a training with
other settings of the section optim. Trials are scored on development rows. An interrupted search
continues; trials.csv and best.yaml have the results so far. Processes with one --storage, each with
its own --out, share the trials of search.ranges.
"""

import argparse

from mttl.commands.adapt import run_jobs
from mttl.commands.options import CommandParser, command


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False)
    parser.add_run(tasks="dev", out="trials (RUN/search-MODE)", required=False)
    help = "trials shared with other processes: URL of a database (sqlite:///FILE), or journal file"
    parser.work.add_argument("--storage", metavar="URL", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Run the search, write the results and print a table."""
    run_jobs("search", "search", options)
