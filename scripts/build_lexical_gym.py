"""Build data/lexical and its partition from lexical data inside installed packages.

    python scripts/build_lexical_gym.py [--out data/lexical] [--check]

Exit codes: 0 done, 1 `--check` found differences, 2 something is missing or in the way.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn

from mttl.progress_bar import counting_bar

ROOT = Path(__file__).resolve().parents[1]
PACKAGES_HINT = "install the packages the gym is built from with `pip install -e '.[gym]'`."


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parse(argv)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        from lexical_gym.gym import build, partition_json
        from lexical_gym.sources import MissingSourceError
        from lexical_gym.store import NotAGymError, differences, write, write_file
        from lexical_gym.tasks import TASKS
    except ModuleNotFoundError as error:
        console.print(f"missing {error.name}: {PACKAGES_HINT}", markup=False)
        return 2

    try:
        with counting_bar(console, TextColumn("{task.fields[name]}")) as progress:
            bar = progress.add_task("building", total=len(TASKS), name="")
            files = build(lambda name: progress.update(bar, advance=1, name=name))
        partition = {arguments.partition.name: partition_json()}
        if arguments.check:
            found = differences(files, arguments.out)
            found += differences(partition, arguments.partition.parent)
            for line in found:
                console.print(line, markup=False)
            n = len(files) + 1
            console.print(f"{len(found)} of {n} files differ" if found else f"{n} files agree")
            return 1 if found else 0
        write(files, arguments.out)
        write_file(arguments.partition, partition_json())
    except (MissingSourceError, NotAGymError) as error:
        console.print(str(error), markup=False)
        return 2
    except OSError as error:
        console.print(f"cannot use '{error.filename}': {error.strerror}", markup=False)
        return 2
    size = sum(map(len, files.values()))
    console.print(f"{len(TASKS)} tasks, {len(files)} files, {size / 1e6:.2f} MB: {arguments.out}")
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the lexical gym and its partition.")
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "data/lexical", help="folder of the gym (%(default)s)")
    add(
        "--partition",
        type=Path,
        default=ROOT / "configs/partitions/lexical.json",
        help="partition file (%(default)s)",
    )
    add("--check", action="store_true", help="compare with what is on disk; write nothing")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
