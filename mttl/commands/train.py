"""Train an inventory of skills and a router jointly on many tasks.

mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
mttl train -c crossfit_paper.yaml+trainer/nodes.yaml --dry-run
mttl train -c crossfit.yaml+router/private.yaml --print-config
"""

import argparse

from mttl.commands.options import CommandParser, command


def _declare(parser: CommandParser) -> None:
    parser.add_config()
    help = "print steps, rows per step, parameters, memory and a time estimate; train nothing"
    parser.work.add_argument("--dry-run", action="store_true", help=help)
    help = "print the merged configuration with the source of each value; train nothing"
    parser.work.add_argument("--print-config", action="store_true", help=help)
    help = "continue the interrupted run with this name"
    parser.work.add_argument("--resume", action="store_true", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Train, score and save."""
    from mttl.commands.name_checks import check_training
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    origins: dict[str, str] = {}
    config = load_any_config(options.config, options.override, origins=origins)
    if options.print_config:
        from mttl.config.load import listed_config
        from mttl.runtime.command import make_console

        text = listed_config(config, origins)
        make_console().print(text, markup=False, soft_wrap=True)
        if not options.dry_run:
            return
    check_training(config, resume=options.resume)
    if options.dry_run:
        world_of(config).run("dry run", config)
        return
    world_of(config).run("training", config, resume=options.resume)
