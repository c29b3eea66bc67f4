"""Change the code of a package here and there, and count how many changes its tests notice.

python scripts/fault_injection/mutants.py --sample 100 --out mutants.csv
python scripts/fault_injection/mutants.py --package skills --sample 20

A mutant is a file with one operator, number or condition changed (Cosmic Ray). It meets the tests
of its module: those of the same name and those of the same package that import it. It is detected
if one fails or nothing ends in time. Work in a checkout of its own: files change while this runs,
and each is restored after its mutant. Mutants are functions of the seed and of the code.
"""

import argparse
import csv
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import MutationVisitor, use_mutation
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("skills", "routing", "moe", "aggregation")
# In an annotation `|` is a union; a removed decorator is mostly one that checks shapes.
LEFT_OUT = ("BitOr", "RemoveDecorator", "ExceptionReplacer", "Variable")
SECONDS = 600

Mutant = tuple[Path, str, int]


def main(arguments: list[str] | None = None) -> int:
    """Run a sample of mutants; print a line for each and the rate of detection."""
    options = parse(arguments)
    files = [
        path
        for package in options.package or PACKAGES
        for path in sorted((ROOT / "mttl" / package).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    mutants = [mutant for path in files for mutant in mutants_of(path) if tests_of(path)]
    chosen = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    with open(options.out, "w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["file", "operator", "occurrence", "line", "detected"])
        n_detected = 0
        for number, (path, operator, occurrence) in enumerate(sorted(chosen), 1):
            line, detected = run(path, operator, occurrence)
            n_detected += detected
            row = [path.relative_to(ROOT).as_posix(), operator, occurrence, line, int(detected)]
            rows.writerow(row)
            out.flush()
            print(f"{number}/{len(chosen)}", *row, flush=True)
    print(f"{n_detected} of {len(chosen)} detected ({len(mutants):,} possible)")
    return 0


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every change that an operator can make to a file."""
    tree = get_ast(path.read_text(encoding="utf-8"))
    for name in operator_names():
        if not any(part in name for part in LEFT_OUT):
            counter = MutationVisitor(-1, get_operator(name)())
            counter.walk(tree)
            yield from ((path, name, occurrence) for occurrence in range(counter._count))


def tests_of(path: Path) -> list[str]:
    """Return the test files of a module."""
    inner = path.relative_to(ROOT / "mttl").with_suffix("")
    named = set((ROOT / "tests" / inner.parent).glob(f"test_{inner.name}*.py"))
    module = f"mttl.{'.'.join(inner.parts)} import"
    package = (ROOT / "tests" / inner.parts[0]).rglob("test_*.py")
    importing = {test for test in package if module in test.read_text(encoding="utf-8")}
    return sorted(str(test) for test in named | importing)


def run(path: Path, operator: str, occurrence: int) -> tuple[int, bool]:
    """Return the first line that a mutant changes, and whether its tests notice."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    with use_mutation(path, get_operator(operator)(), occurrence) as (before, after):
        pairs = zip(before.splitlines(), (after or "").splitlines(), strict=False)
        line = next((n for n, (old, new) in enumerate(pairs, 1) if old != new), 0)
        try:
            done = subprocess.run(
                [*command, *tests_of(path)], cwd=ROOT, capture_output=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return line, True
    return line, done.returncode != 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", nargs="+", choices=PACKAGES, help="by default all")
    parser.add_argument("--sample", type=int, default=100, help="mutants (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--out", type=Path, default=Path("mutants.csv"), help="a line each")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
