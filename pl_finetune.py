"""Adapt a trained inventory to new tasks, from a few examples each.

python pl_finetune.py -c crossfit.yaml --from runs/crossfit
python pl_finetune.py -c crossfit.yaml --from runs/crossfit --tasks dev -k adapt.mode=router_only
python pl_finetune.py -c crossfit.yaml --from runs/crossfit --tasks third_past --save
python pl_finetune.py -c babyai.yaml --from runs/babyai --tasks GoToRedBall,GoToLocalS6N2

Of the configuration, the sections data, generation, optim and adapt are read; backbone, skills and
router are those of the run.
"""

import argparse
import sys
from pathlib import Path

from mttl.adaptation.shard import add_shares
from mttl.command import READ, WRITTEN, add_config, add_run, exit_with, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Adapt, score and print a table; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = vars(parse(given))
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of
    from mttl.inventory_folder import inventory_folder

    overrides = options.pop("override")
    config = load_any_config(options.pop("config"), overrides)
    inventory_folder(options["source"])
    from mttl.build.saved_settings import check_overrides

    check_overrides(options["source"], config, overrides)
    command = [sys.executable, str(Path(__file__).resolve()), *given]
    world_of(config).run("adaptation", config, command=command, **options)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add_config(parser)
    add_run(parser, tasks="test", out="results (RUN/adapt-MODE)")
    add_shares(parser)
    parser.group(WRITTEN).add_argument(
        "--save",
        action="store_true",
        help="keep what every job has learned, in OUT/models/TASK-SAMPLE-SEED",
    )
    parser.group(READ).add_argument(
        "--reference", metavar="DIR", help="results to state the average relative gain over"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
