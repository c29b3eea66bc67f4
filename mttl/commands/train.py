"""Train an inventory of skills and a router jointly over many tasks.

mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
"""

import argparse

from mttl.commands.options import WORK, CommandParser, add_config, command


def declare(parser: CommandParser) -> None:
    """Add the options."""
    add_config(parser)
    help = "continue the interrupted run of this name"
    parser.group(WORK).add_argument("--resume", action="store_true", help=help)


@command(declare)
def main(options: argparse.Namespace) -> None:
    """Train, score and save."""
    from mttl.commands.name_checks import check_training
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    config = load_any_config(options.config, options.override)
    check_training(config, resume=options.resume)
    world_of(config).run("training", config, resume=options.resume)
