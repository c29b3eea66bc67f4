"""Record demonstrations of minigrid's bot once, to learn from them by imitation.

mttl babyai record --levels GoToRedBall GoToLocal --episodes 10000 \
    --out data/demonstrations/goto.npz --workers 4

The episodes do not depend on the number of workers. `load_demonstrations` of
envs.demonstration_file reads the file; it is written at the end, whole or not at all.
"""

import argparse
from pathlib import Path

from envs.errors import LevelError
from envs.levels import PAPER_LEVELS
from mttl.commands.options import WORK, WRITTEN, make_parser, natural, new_path, positive
from mttl.io.errors import MttlError
from mttl.runtime.command import make_console
from mttl.runtime.progress_bar import counting_bar


def main(arguments: list[str] | None = None) -> int:
    """Record all levels, then write the file."""
    options = parse(arguments)
    if options.out.suffix != ".npz":
        raise MttlError(f"'{options.out}' must end in .npz")
    new_path(options.out)
    from envs.demonstration_file import save_demonstrations
    from envs.demonstrations import record_demonstrations
    from envs.interface import check_levels

    console = make_console()
    try:
        with counting_bar(console) as bars:
            rows = {
                level: bars.add_task(level, total=options.episodes)
                for level in check_levels(options.levels)
            }
            record = record_demonstrations(
                options.levels,
                options.episodes,
                seed=options.seed,
                n_workers=options.workers,
                progress=lambda level, n: bars.update(rows[level], completed=n),
            )
    except LevelError as error:
        raise MttlError(str(error)) from error
    save_demonstrations(record, options.out)
    n_steps = sum(len(episode.actions) for episode in record)
    console.print(f"{len(record)} demonstrations of {n_steps} steps are in {options.out}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("babyai record", __doc__)
    add = parser.group(WORK).add_argument
    add(
        "--levels",
        nargs="+",
        default=PAPER_LEVELS,
        metavar="LEVEL",
        help="such as GoToLocal (those of the paper)",
    )
    add("--episodes", type=positive, required=True, metavar="N", help="episodes of each level")
    workers_help = "processes (%(default)s: none)"
    add("--workers", type=natural, default=0, metavar="N", help=workers_help)
    add("--seed", type=int, default=0, metavar="N", help="seed of the record (%(default)s)")
    out = parser.group(WRITTEN).add_argument
    out("--out", type=Path, required=True, metavar="FILE", help="file to write, .npz")
    return parser.parse_args(arguments)
