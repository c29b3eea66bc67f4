"""Merge models by a recipe: task arithmetic, CaPE, elastic weight removal, Fisher, TIES, DARE.

mttl merge recipe.yaml --out models/merged

docs/howto/merge.md describes recipes. Models are folders of transformers with safetensors, and runs
of mttl train. They are read tensor by tensor, so they may be larger than memory (with --no-probe).
The output folder appears when it is complete; an interrupted merge starts again.
"""

import argparse

from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError
from mttl.runtime.command import make_console, say
from mttl.runtime.progress_bar import counting_bar


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("recipe", metavar="RECIPE", help="YAML file of the recipe")
    parser.written.add_argument("--out", metavar="DIR", help="output folder (out in the recipe)")
    parser.add_no_probe()


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Merge the models of a recipe."""
    from mttl.merging.recipe import read_recipe

    recipe = read_recipe(options.recipe)
    out = options.out or recipe.out
    if out is None:
        raise ConfigError(f"{options.recipe}: set the key out in the recipe, or use --out DIR")
    from mttl.merging.run import merge_models

    with counting_bar(make_console(stderr=True)) as progress:
        bar = progress.add_task("merging", total=None)
        merge_models(
            *(recipe, out),
            on_tensor=lambda done, total: progress.update(bar, completed=done, total=total),
            probe=not options.no_probe,
        )
    say(f"The model is in {out}")
