"""The command line of a builder: write a gym and what belongs to it, or compare both."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn

from derived_gym.packages import MissingSourceError
from derived_gym.store import NotAGymError, differences, write, write_file
from mttl.runtime.progress_bar import counting_bar

ROOT = Path(__file__).resolve().parents[3]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class GymRecipe:
    """How a gym is built.

    Attributes:
        title: The first line of its README.
        n_steps: Number of progress steps.
        build: Returns the files of its folder, given what to call with each task's name.
        settings: Returns the files under `configs/` that belong to it.
        note: Returns what explains differences, such as other versions; often nothing.
    """

    title: str
    n_steps: int
    build: Callable[[Progress], dict[str, bytes]]
    settings: Callable[[], dict[str, bytes]]
    note: Callable[[], str] = str


def run(
    argv: list[str] | None, name: str, extra: str, recipe: Callable[[], GymRecipe], about: str
) -> int:
    """Build the gym `data/<name>` and return the exit code.

    Exit codes: 0 done, 1 ``--check`` found differences, 2 something is missing or in the way.

    Args:
        argv: The command line; by default the program's own.
        name: Of the gym.
        extra: The optional dependencies that hold its sources.
        recipe: Makes the recipe; called late, since it imports the sources.
        about: The sentence of the help.
    """
    arguments = _parse(argv, name, about)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        made = recipe()
        with counting_bar(console, TextColumn("{task.fields[name]}")) as progress:
            bar = progress.add_task("building", total=made.n_steps, name="")
            files = made.build(lambda task: progress.update(bar, advance=1, name=task))
        settings = made.settings()
        if arguments.check:
            found = differences(files, arguments.out) + differences(settings, arguments.configs)
            for line in found:
                console.print(line, markup=False)
            n = len(files) + len(settings)
            console.print(f"{len(found)} of {n} files differ" if found else f"{n} files agree")
            if found and made.note():
                console.print(made.note(), markup=False)
            return 1 if found else 0
        write(files, arguments.out, made.title)
        for path, content in settings.items():
            write_file(arguments.configs / path, content)
    except ModuleNotFoundError as error:
        console.print(
            f"missing {error.name}: install the packages the gym is built from with "
            f"`pip install -e '.[{extra}]'`.",
            markup=False,
        )
        return 2
    except (MissingSourceError, NotAGymError) as error:
        console.print(str(error), markup=False)
        return 2
    except OSError as error:
        console.print(f"cannot use '{error.filename}': {error.strerror}", markup=False)
        return 2
    size = sum(map(len, files.values()))
    n_tasks = len({path.partition("/")[0] for path in files if "/" in path})
    n_files = f"{n_tasks} tasks, {len(files)} files, {size / 1e6:.2f} MB"
    console.print(f"{n_files}: {arguments.out}", markup=False)
    return 0


def main(name: str, extra: str, recipe: Callable[[], GymRecipe], about: str) -> None:
    """Run and end the program."""
    sys.exit(run(None, name, extra, recipe, about))


def _parse(argv: list[str] | None, name: str, about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "data" / name, help="folder of the gym (%(default)s)")
    add(
        "--configs",
        type=Path,
        default=ROOT / "configs",
        help="where the partitions go, and what else belongs to the gym (%(default)s)",
    )
    add("--check", action="store_true", help="compare with what is on disk; write nothing")
    return parser.parse_args(argv)
