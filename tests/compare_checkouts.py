"""Run the same commands in two checkouts and compare what they leave, bit for bit.

python tests/compare_checkouts.py ../before . --out runs/compared
python tests/compare_checkouts.py ../before . --only text adaptation

For a change that must change no number: short trainings, adaptations, merges and exports with fixed
seeds on the CPU, and a run that is interrupted and resumed. What starts from a run is also done by
the code of AFTER with the folders that BEFORE has left. The exit status is 1 if anything differs.
What BEFORE leaves is kept in OUT and used again; AFTER runs every time.
"""

import argparse
import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from checkouts.cases import CASES, with_needs
from checkouts.differences import Difference, compare_folders
from checkouts.running import Job, Side, run_jobs, state_of
from mttl.runtime.command import exit_with, make_console

SHOWN = 10  # differences of one case; the others are counted


def main(arguments: list[str] | None = None) -> int:
    """Run, compare and print; return the exit status."""
    options = parse(arguments)
    first, second = (Path(name).resolve() for name in (options.before, options.after))
    out = Path(options.out).resolve()
    kept, ours, crossed = out / f"before-{state_of(first)}", out / "after", out / "crossed"
    state_of(second)
    before = Side("before", first, kept, kept)
    after = Side("after", second, ours, ours)
    on_before = Side("after, from the folders of before", second, crossed, kept)
    for folder in (ours, crossed):
        shutil.rmtree(folder, ignore_errors=True)
    cases = with_needs(options.only or [case.name for case in CASES])
    compared = [
        Job(side, case) for case in cases for side in (after, on_before)[: 1 + bool(case.needs)]
    ]
    jobs = [Job(before, case) for case in cases if not before.has_ended(case)]
    order = {case.name: number for number, case in enumerate(cases)}
    jobs = sorted(jobs + compared, key=lambda job: order[job.case.name])
    failures = run_jobs(jobs, make_console(stderr=True))
    return report(compared, kept, failures, make_console())


def report(jobs: list[Job], before: Path, failures: dict[Job, str], console: Console) -> int:
    """Compare what the jobs have left and print a table; return the exit status."""
    table = Table("what", "files", "equal", "different", title="What AFTER leaves")
    details = [f"{job}: failed: {why}" for job, why in failures.items()]
    for job in jobs:
        if job in failures or job.case.stop_at:
            continue
        name = job.case.name
        found = compare_folders(before / name, job.side.folder / name, job.case.makes)
        differing = [places for places in found.values() if places]
        counts = (len(found), len(found) - len(differing), len(differing))
        table.add_row(str(job), *map(str, counts))
        details += described(str(job), [place for places in differing for place in places])
    console.print(table)
    for line in details:
        console.print(line, markup=False, soft_wrap=True)
    return 1 if details else 0


def described(name: str, differences: list[Difference]) -> list[str]:
    """Return a line per difference, the first ones."""
    lines = [f"{name}: {d.file} {d.place}: {d.what}" for d in differences[:SHOWN]]
    more = len(differences) - SHOWN
    return [*lines, f"{name}: and {more} more"] if more > 0 else lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add, names = parser.add_argument, [case.name for case in CASES]
    add("before", metavar="BEFORE", help="the folder of a checkout")
    add("after", metavar="AFTER", help="the folder of another")
    add("--out", default="runs/compare_checkouts", metavar="DIR", help="(%(default)s)")
    help = f"these, and what they need: {', '.join(names)}"
    add("--only", nargs="+", choices=names, metavar="NAME", help=help)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
