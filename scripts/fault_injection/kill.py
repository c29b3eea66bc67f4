"""Kill every command that writes, again and again, and compare what comes out in the end.

    python scripts/fault_injection/kill.py --kills 200
    python scripts/fault_injection/kill.py --kills 20 --only train babyai --seed 3

A chain is a command on tiny settings that is hit by several faults, one after another: killed
before a random change of the file system, just after it has opened a file, or at a random time;
the disk full or read-only from a random change on; its folder removed, or moved in between. It is
started again as its messages say, ends, and all files are compared bit for bit with those of a run
that nothing disturbed. The table counts chains that showed something bad; the exit status is 1 if
there is one. The folders of bad chains are kept below --out.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kills.chain import BAD, ChainFolders, Verdict
from kills.commands import COMMANDS, Command
from kills.process import prepare

MEMORY = Path("/dev/shm")  # another file system than that of most folders


def main(arguments: list[str] | None = None) -> int:
    """Run chains until there were enough kills; print the table."""
    options = parse(arguments)
    prepare()
    commands = [command for command in COMMANDS if command.name in options.only]
    status = Console(stderr=True)
    out = Path(options.out or tempfile.mkdtemp(prefix="kill-"))
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"--out '{out}' is not empty: name a new folder")
    temporary = Path(tempfile.mkdtemp(prefix="kill-", dir=MEMORY if MEMORY.is_dir() else None))
    ground = ChainFolders(out, temporary)
    ground.prepare(commands)
    verdicts: list[Verdict] = []
    chains = enumerate(plan(commands, options.seed))
    with Progress(console=status) as progress, ThreadPoolExecutor(options.workers) as pool:
        bar = progress.add_task("undisturbed", total=len(commands))
        for _ in pool.map(ground.undisturbed, commands):
            progress.advance(bar)
        bar = progress.add_task("faults", total=options.kills)
        running: set[Future[Verdict]] = set()
        while (struck := sum(verdict.n_struck for verdict in verdicts)) < options.kills or running:
            while struck < options.kills and len(running) < options.workers:
                number, (command, n_faults) = next(chains)
                running.add(pool.submit(ground.run_chain, command, number, options.seed, n_faults))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for verdict in (future.result() for future in ended):
                verdicts.append(verdict)
                progress.advance(bar, verdict.n_struck)
                for line in verdict.lines():
                    progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
    Console(width=160).print(table(commands, verdicts))
    shutil.rmtree(temporary, ignore_errors=True)
    bad = any(verdict.problems for verdict in verdicts)
    if options.out is None and not bad:
        shutil.rmtree(out, ignore_errors=True)
    return int(bad)


def plan(commands: Sequence[Command], seed: int) -> Iterator[tuple[Command, int]]:
    """Yield commands with how many faults are to hit them: each once, then by their weights."""
    rng = random.Random(seed)
    yield from ((command, rng.randint(1, 4)) for command in commands)
    weights = [command.weight for command in commands]
    while True:
        (command,) = rng.choices(commands, weights)
        yield command, rng.randint(1, 4)


def table(commands: Sequence[Command], verdicts: Sequence[Verdict]) -> Table:
    """Return a row per command: how many faults met it, and the chains that were bad."""
    shown = Table()
    for heading in ("command", "chains", "faults", *BAD):
        shown.add_column(heading, justify="left" if heading == "command" else "right")
    names = [command.name for command in commands]
    for name in [*names, "all"]:
        own = [verdict for verdict in verdicts if name in (verdict.command, "all")]
        if own:
            counts = [sum(column in verdict.problems for verdict in own) for column in BAD]
            faults = sum(verdict.n_struck for verdict in own)
            shown.add_row(name, *map(str, (len(own), faults, *counts)))
    return shown


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [command.name for command in COMMANDS]
    parser.add_argument("--kills", type=int, default=200, help="faults in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--workers", type=int, default=2, help="chains at a time (%(default)s)")
    parser.add_argument("--out", metavar="DIR", help="(a new temporary folder)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
