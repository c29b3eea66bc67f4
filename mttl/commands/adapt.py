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
from typing import Any

from mttl.commands.options import READ, WRITTEN, add_config, add_run, add_shares, make_parser
from mttl.io.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Adapt, score and print a table; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = vars(parse(given))
    reference = options["reference"]
    if reference and not any(Path(reference).glob("results*.jsonl")):
        raise ConfigError(f"--reference '{reference}' holds no results*.jsonl of an adaptation")
    return run_jobs("adapt", "adaptation", given, options)


def run_jobs(name: str, work: str, given: list[str], options: dict[str, Any]) -> int:
    """Do the work of `mttl adapt` or `mttl search` on a run, if one is given."""
    from mttl.commands.name_checks import check_adaptation
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    overrides, source = options.pop("override"), options["source"]
    config = load_any_config(options.pop("config") or "", overrides, run=source)
    if source is not None:
        names = (source, options["tasks"], options["samples"])
        check_adaptation(config, *names, allow_seen=options["allow_seen"])
        from mttl.assembly.saved_settings import check_overrides

        check_overrides(source, config, overrides)
    command = [sys.executable, "-m", "mttl", name, *given]
    world_of(config).run(work, config, command=command, **options)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("adapt", __doc__)
    add_config(parser, required=False)
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
