"""Train an inventory of skills and a router jointly on many tasks.

mttl train --tasks tasks.yaml --backbone DIR [--router private]     # from mttl init
mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
"""

import argparse
import json

from mttl.commands.options import CommandParser, command, task_overrides
from mttl.io.errors import ConfigError

DEFAULT = "custom.yaml"  # with --tasks


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False, default="custom.yaml with --tasks")
    add = parser.read.add_argument
    add("--tasks", metavar="FILE", help="file of custom tasks: data.tasks, without data.dir")
    add("--backbone", metavar="DIR", help="language model, a folder or a name: backbone.name")
    help = "private, polytropon, shared, ...: router/NAME.yaml; or a file, merged last"
    add("--router", metavar="NAME", help=help)
    help = "continue the interrupted run with this name"
    parser.work.add_argument("--resume", action="store_true", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Train, score and save."""
    from mttl.commands.name_checks import check_training
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    if options.config is None and options.tasks is None:
        raise ConfigError(
            "name a file of custom tasks with --tasks (mttl init DIR > tasks.yaml writes one), or "
            "configuration files with -c"
        )
    files = [options.config or DEFAULT]
    if (router := options.router) is not None:
        files.append(router if router.endswith(".yaml") else f"router/{router}")
    given = task_overrides(options.tasks)
    if options.backbone is not None:
        kind = "backbone.kind=pretrained"
        given += [kind, f"backbone.name={json.dumps(options.backbone)}"]
    config = load_any_config("+".join(files), [*given, *options.override])
    check_training(config, resume=options.resume)
    world_of(config).run("training", config, resume=options.resume)
