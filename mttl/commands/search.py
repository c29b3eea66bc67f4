"""Search for settings of adaptation on development tasks, or of training, without test rows.

mttl search -c crossfit.yaml+search/polytropon.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml+runs/crossfit/search-all/best.yaml --from runs/crossfit
mttl search -c crossfit.yaml+search/training.yaml --out runs/search

Every trial adapts to all samples of the partition's dev tasks and is scored on their development
rows. Without --from every trial is a training with other settings of the section optim, scored on
the development rows of its tasks. Started again, it goes on; trials.csv and best.yaml hold what is
known so far.
"""

import argparse
import sys

from mttl.commands.options import add_config, add_run, add_shares, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Search, write what was found and print a table; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = vars(parse(given))
    from mttl.commands.name_checks import check_adaptation
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    overrides = options.pop("override")
    config = load_any_config(options.pop("config") or "", overrides, run=options["source"])
    if options["source"] is not None:
        allow_seen = options["allow_seen"]
        names = (options["source"], options["tasks"], options["samples"])
        check_adaptation(config, *names, allow_seen=allow_seen)
        from mttl.assembly.saved_settings import check_overrides

        check_overrides(options["source"], config, overrides)
    command = [sys.executable, "-m", "mttl", "search", *given]
    world_of(config).run("search", config, command=command, **options)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("search", __doc__)
    add_config(parser, required=False)
    add_run(parser, tasks="dev", out="trials (RUN/search-MODE)", required=False)
    add_shares(parser)
    return parser.parse_args(arguments)
