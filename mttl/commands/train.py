"""Train an inventory of skills and a router jointly on many tasks.

mttl train --tasks tasks.yaml --backbone DIR [--router private]     # from mttl init
mttl train -c crossfit.yaml
mttl train -c crossfit.yaml+router/private.yaml -k skills.rank=8 trainer.max_steps=500
mttl train -c babyai.yaml
mttl train -c crossfit_paper.yaml+trainer/nodes.yaml --dry-run
mttl train -c crossfit.yaml+router/private.yaml --print-config
"""

import argparse
import json
from typing import Any

from mttl.commands.options import CommandParser, command, task_overrides
from mttl.io.errors import ConfigError


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False, default="custom.yaml with --tasks")
    add = parser.read.add_argument
    add("--tasks", metavar="FILE", help="file of custom tasks: data.tasks, without data.dir")
    add("--backbone", metavar="DIR", help="language model, a folder or a name: backbone.name")
    help = "private, polytropon, shared, ...: router/NAME.yaml; or a file, merged last"
    add("--router", metavar="NAME", help=help)
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
    from mttl.config.load import CUSTOM, load_any_config
    from mttl.config.worlds import world_of

    if options.config is None and options.tasks is None:
        raise ConfigError(
            "name a file of custom tasks with --tasks (mttl init DIR > tasks.yaml writes one), or "
            "configuration files with -c"
        )
    files = [options.config or CUSTOM]
    if (router := options.router) is not None:
        files.append(router if router.endswith(".yaml") else f"router/{router}")
    given = task_overrides(options.tasks)
    if options.backbone is not None:
        given += ["backbone.kind=pretrained", f"backbone.name={json.dumps(options.backbone)}"]
    origins: dict[str, str] = {}
    config: Any = load_any_config("+".join(files), [*given, *options.override], origins=origins)
    if options.print_config:
        from mttl.config.load import listed_config
        from mttl.runtime.command import make_console

        make_console().print(listed_config(config, origins), markup=False, soft_wrap=True)
        if not options.dry_run:
            return
    check_training(config, resume=options.resume)
    if options.dry_run:
        world_of(config).run("dry run", config)
        return
    world_of(config).run("training", config, resume=options.resume)
