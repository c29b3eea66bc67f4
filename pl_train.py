"""Train an inventory of skills and a router jointly over many tasks.

python pl_train.py -c crossfit.yaml
python pl_train.py -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
python pl_train.py -c babyai.yaml
"""

import argparse

from mttl.command import WORK, add_config, exit_with, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Train, score and save; return the exit status."""
    options = parse(arguments)
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    config = load_any_config(options.config, options.override)
    world_of(config).run("training", config, resume=options.resume)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add_config(parser)
    parser.group(WORK).add_argument(
        "--resume", action="store_true", help="continue the interrupted run of this name"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
