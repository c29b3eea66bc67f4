"""Damage every kind of file that the project reads, and count what the readers make of it.

python scripts/fault_injection/fuzz.py --cases 10000
python scripts/fault_injection/fuzz.py --cases 300 --only recipe "PEFT folder"
python scripts/fault_injection/fuzz.py --cases 10000 --out cases.jsonl
python scripts/fault_injection/fuzz.py --replay recipe:17

A case copies sound files, changes one of them and calls the function or the command that reads it.
It is good if the change is refused by an error of the project (of a command: status 2 and one
message), has no effect, or is taken where nothing promises to notice it. It is rough if the reader
ends in a traceback or another status, gives a message that cannot be shown, hangs or needs a
gibibyte: files that people do not write by hand have no messages of their own. It is bad if the
reader takes other content than checksums promise (silent), or runs a program from the file. The
status is 1 if any case is bad. Cases are functions of the seed, their area and their number. With
--out a stopped command continues: endings are kept in that file, and their cases are not repeated.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Scripts and commands are not a package; processes that are forked later find them in the same way.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "scripts"), str(ROOT)]
for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from fuzzing.areas import AREAS  # noqa: E402
from fuzzing.cases import BAD, GOOD, ROUGH, Cases, Ending  # noqa: E402
from fuzzing.samples import write_samples  # noqa: E402
from fuzzing.workers import Case, run_apart, run_cases  # noqa: E402
from rich.table import Table  # noqa: E402

from mttl.commands.options import natural, positive  # noqa: E402
from mttl.runtime.command import exit_with, make_console  # noqa: E402

SHOWN = 10  # bad cases of an area that are printed


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print the table; 1 if any case is bad."""
    options = parse(arguments)
    console = make_console()
    if options.keep_samples is not None:
        write_samples(options.keep_samples)
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=options.scratch) as name:
        root = Path(name)
        if options.samples is None:
            run_apart(write_samples, root / "samples")
        else:
            (root / "samples").symlink_to(options.samples.resolve())
        if options.replay:
            area, _, number = options.replay.rpartition(":")
            ending = Cases(root, options.seed).run(area, int(number))
            console.print(f"{ending.change}: {ending.outcome}\n{ending.detail}", markup=False)
            return int(ending.outcome in BAD)
        begun = time.monotonic()
        cases = share(options.cases, options.only or list(AREAS))
        endings = read_endings(options.out)
        done = {(ending.area, ending.number) for ending in endings}
        left = [case for case in cases if case not in done]
        with open(options.out or os.devnull, "a") as out:
            for ending in run_cases(
                left, root, options.seed, n_workers=options.workers, patience=options.patience
            ):
                endings.append(ending)
                print(json.dumps(asdict(ending)), file=out, flush=True)
                if len(endings) % 500 == 0:
                    seconds = time.monotonic() - begun
                    print(f"{len(endings)} of {len(cases)} cases, {seconds:.0f} s", file=sys.stderr)
    console.print(table(endings))
    bad = [ending for ending in endings if ending.outcome in BAD]
    shown = [ending for ending in endings if ending.outcome not in GOOD]
    for area in dict.fromkeys(ending.area for ending in shown):
        for ending in [ending for ending in shown if ending.area == area][: options.shown]:
            last = ending.detail.strip().splitlines()[-1] if ending.detail.strip() else ""
            console.print(
                f"{area}:{ending.number} {ending.outcome} ({ending.change}) {last[:300]}",
                markup=False,
            )
    seconds = time.monotonic() - begun
    slowest = max((ending.seconds for ending in endings), default=0.0)
    console.print(
        f"{len(endings)} cases, seed {options.seed}: {len(bad)} bad; {seconds:.0f} s, the slowest "
        f"case {slowest:.1f} s"
    )
    return int(bool(bad))


def read_endings(path: Path | None) -> list[Ending]:
    """Return the endings of an earlier call with the same cases and seed."""
    if path is None or not path.is_file():
        return []
    return [Ending(**json.loads(line)) for line in path.read_text().splitlines()]


def share(n_cases: int, names: Sequence[str]) -> list[Case]:
    """Deal cases to areas by their weights, each at least one."""
    total = sum(AREAS[name].weight for name in names)
    counts = {name: max(1, round(n_cases * AREAS[name].weight / total)) for name in names}
    cases = [(name, number) for name, count in counts.items() for number in range(count)]
    return sorted(cases, key=lambda case: (case[1] / counts[case[0]], case[0]))


def table(endings: Sequence[Ending]) -> Table:
    """Return the counts of every area."""
    found = Table("area", "cases", *GOOD, *ROUGH, *BAD, title="Damaged and hostile files")
    counts = {
        name: Counter(ending.outcome for ending in endings if ending.area == name)
        for name in dict.fromkeys(ending.area for ending in endings)
    }
    for name in sorted(counts):
        row = counts[name]
        found.add_row(name, str(row.total()), *(str(row[kind]) for kind in (*GOOD, *ROUGH, *BAD)))
    whole = Counter(ending.outcome for ending in endings)
    found.add_section()
    found.add_row("all", str(whole.total()), *(str(whole[kind]) for kind in (*GOOD, *ROUGH, *BAD)))
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=positive, default=1000, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=natural, default=13, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(AREAS), metavar="AREA", help="(all)")
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--patience", type=positive, default=60, metavar="S", help="seconds of a case (%(default)s)"
    )
    parser.add_argument(
        "--samples", type=Path, metavar="DIR", help="sound files of an earlier --keep-samples"
    )
    parser.add_argument("--keep-samples", type=Path, metavar="DIR", help="write them and leave")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep endings; continue from them")
    parser.add_argument("--scratch", metavar="DIR", help="where files are made (the system's)")
    parser.add_argument(
        "--shown",
        type=natural,
        default=SHOWN,
        metavar="N",
        help="rough and bad cases of an area to print",
    )
    parser.add_argument("--replay", metavar="AREA:NUMBER", help="run one case and show its end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
