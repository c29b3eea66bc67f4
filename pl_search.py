"""Search for settings of adaptation on development tasks, or of training, without test rows.

python pl_search.py -c crossfit.yaml+search/polytropon.yaml --from runs/crossfit
python pl_finetune.py -c crossfit.yaml+runs/crossfit/search-all/best.yaml --from runs/crossfit
python pl_search.py -c crossfit.yaml+search/training.yaml --out runs/search

Every trial adapts to all samples of the partition's dev tasks and is scored on their development
rows. Without --from every trial is a training with other settings of the section optim, scored on
the development rows of its tasks. Started again, it goes on; trials.csv and best.yaml hold what is
known so far.
"""

import argparse
import sys
from pathlib import Path

from mttl.adaptation.shard import add_shares
from mttl.command import add_config, add_run, exit_with, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Search, write what was found and print a table; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = vars(parse(given))
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of
    from mttl.inventory_folder import inventory_folder

    overrides = options.pop("override")
    config = load_any_config(options.pop("config"), overrides)
    if options["source"] is not None:
        inventory_folder(options["source"])
        from mttl.build.saved_settings import check_overrides

        check_overrides(options["source"], config, overrides)
    command = [sys.executable, str(Path(__file__).resolve()), *given]
    world_of(config).run("search", config, command=command, **options)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add_config(parser)
    add_run(parser, tasks="dev", out="trials (RUN/search-MODE)", required=False)
    add_shares(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
