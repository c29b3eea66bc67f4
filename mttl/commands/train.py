"""Train an inventory of skills and a router jointly over many tasks.

mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
"""

import argparse

from mttl.commands.options import WORK, add_config, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Train, score and save; return the exit status."""
    options = parse(arguments)
    from mttl.commands.name_checks import check_training
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    config = load_any_config(options.config, options.override)
    check_training(config, resume=options.resume)
    world_of(config).run("training", config, resume=options.resume)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("train", __doc__)
    add_config(parser)
    parser.group(WORK).add_argument(
        "--resume", action="store_true", help="continue the interrupted run of this name"
    )
    return parser.parse_args(arguments)
