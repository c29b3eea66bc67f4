"""Train an inventory of skills and a router jointly on many tasks.

mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
"""

import argparse

from mttl.commands.options import CommandParser, command


def _declare(parser: CommandParser) -> None:
    parser.add_config()
    help = "continue the interrupted run with this name"
    parser.work.add_argument("--resume", action="store_true", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Train, score and save."""
    from mttl.commands.name_checks import check_training
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    config = load_any_config(options.config, options.override)
    check_training(config, resume=options.resume)
    world_of(config).run("training", config, resume=options.resume)
