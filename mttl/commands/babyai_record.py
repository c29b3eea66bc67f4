"""Record demonstrations of minigrid's bot for imitation learning.

mttl babyai record --levels GoToRedBall GoToLocal --episodes 10000 \
    --out data/demonstrations/goto.npz --workers 4

The episodes do not depend on the number of workers. The file is written atomically at the end;
`load_demonstrations` of envs.demonstrations reads it.
"""

import argparse

from envs.levels import PAPER_LEVELS, LevelError
from mttl.commands.name_checks import check_levels
from mttl.commands.options import NATURAL, POSITIVE, CommandParser, command
from mttl.io.errors import MttlError, raised_as
from mttl.runtime.command import make_console
from mttl.runtime.progress_bar import counting_bar


def _declare(parser: CommandParser) -> None:
    add = parser.work.add_argument
    help = "levels such as GoToLocal (those of the paper)"
    add("--levels", nargs="+", default=PAPER_LEVELS, metavar="LEVEL", help=help)
    add("--episodes", **POSITIVE, required=True, help="episodes per level")
    add("--workers", **NATURAL, default=0, help="additional processes (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="random seed (%(default)s)")
    parser.add_out("file to write, .npz", metavar="FILE")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Record all levels, then write the file."""
    if options.out.suffix != ".npz":
        raise MttlError(f"'{options.out}' must end in .npz (--out)")
    from envs.demonstrations import record_demonstrations, save_demonstrations

    levels, console = check_levels(options.levels, "--levels"), make_console()
    with raised_as(MttlError, "", LevelError), counting_bar(console) as bars:
        rows = {level: bars.add_task(level, total=options.episodes) for level in levels}
        record = record_demonstrations(
            *(levels, options.episodes),
            seed=options.seed,
            n_workers=options.workers,
            progress=lambda level, n: bars.update(rows[level], completed=n),
        )
    save_demonstrations(record, options.out)
    n_steps = sum(len(episode.actions) for episode in record)
    console.print(f"{len(record)} demonstrations with {n_steps} steps are in {options.out}")
