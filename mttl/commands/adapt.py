"""Adapt a trained inventory to new tasks, from a few examples each.

mttl adapt -c crossfit.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks dev -k adapt.mode=router_only
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks third_past --save
mttl adapt -c babyai.yaml --from runs/babyai --tasks GoToRedBall,GoToLocalS6N2

Of the configuration, the sections data, generation, optim and adapt are read; backbone, skills and
router are those of the run.
"""

import argparse
import sys
from pathlib import Path

from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False)
    parser.add_run(tasks="test", out="results (RUN/adapt-MODE)")
    help = "keep what every job has learned, in OUT/models/TASK-SAMPLE-SEED"
    parser.written.add_argument("--save", action="store_true", help=help)
    help = "results to state the average relative gain over"
    parser.read.add_argument("--reference", metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Adapt, score and print a table."""
    reference = options.reference
    if reference and not any(Path(reference).glob("results*.jsonl")):
        raise ConfigError(f"--reference '{reference}' holds no results*.jsonl of an adaptation")
    run_jobs("adapt", "adaptation", options)


def run_jobs(name: str, work: str, options: argparse.Namespace) -> None:
    """Do the work of `mttl adapt` or `mttl search` on a run, if one is given."""
    from mttl.commands.name_checks import check_adaptation
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    given = vars(options)
    words = [sys.executable, "-m", "mttl", name, *given.pop("arguments")]
    overrides, source = given.pop("override"), options.source
    config = load_any_config(given.pop("config") or "", overrides, run=source)
    if source is not None:
        names = (source, options.tasks, options.samples)
        check_adaptation(config, *names, allow_seen=options.allow_seen)
        from mttl.assembly.saved_settings import check_overrides

        check_overrides(source, config, overrides)
    world_of(config).run(work, config, command=words, **given)
