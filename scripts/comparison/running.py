"""What all comparisons do: run what is missing, several at a time, in a folder of their own."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from comparison.stages import Processes
from mttl.command import (
    READ,
    WORK,
    WRITTEN,
    CommandParser,
    add_overrides,
    make_console,
    make_parser,
    positive,
    processes,
)
from mttl.errors import ConfigError
from mttl.files import locked, write_text
from mttl.progress_bar import counting_bar
from mttl.reading import MOST_YAML, read_text

Item = TypeVar("Item")
COMPARED = "what is compared"  # a group of options, as those of `mttl.command`


def run_all(
    todo: Sequence[Item],
    run: Callable[[Item, Processes], object],
    *,
    n_workers: int,
    name: Callable[[Item], str],
    ended: Callable[[], object],
) -> None:
    """Run items several at a time, with a progress bar.

    Args:
        todo: What is missing.
        run: Runs one by commands, which end when this process has to stop.
        n_workers: How many at a time; each has its share of the cores.
        name: What an item is called.
        ended: Called whenever one has ended, to keep tables up to date.
    """
    status = make_console(stderr=True)
    processes = Processes(n_threads=max(1, (os.cpu_count() or 1) // n_workers))
    with (
        counting_bar(status) as progress,
        ThreadPoolExecutor(n_workers) as pool,
        processes.stopping(),
    ):
        bar = progress.add_task("comparing", total=len(todo))
        futures = {pool.submit(run, item, processes): item for item in todo}
        try:
            for future in as_completed(futures):
                future.result()
                progress.advance(bar)
                status.print(f"{name(futures[future])}: ended")
                ended()
        finally:
            # What waits for its turn leaves no trace when the others are stopped.
            pool.shutdown(wait=False, cancel_futures=True)


def alone(out: Path) -> AbstractContextManager[None]:
    """Keep other comparisons out of a folder: they would clear each other's runs."""
    refusal = ConfigError(
        f"another comparison is at work in '{out}': wait for it, or choose another folder "
        "with --out"
    )
    return locked(out / ".lock", refusal)


def refuse_settings(overrides: Sequence[str], own: Mapping[str, str]) -> None:
    """Refuse overrides of what the comparison sets itself."""
    for text in overrides:
        name = text.partition("=")[0].strip()
        if name in own:
            raise ConfigError(f"-k {name} is set by the comparison itself{own[name]}: leave it out")


def path_setting(name: str, path: Path) -> str:
    """Return an override whose value is a path, whatever its name: overrides are YAML."""
    return f"{name}={json.dumps(str(path), ensure_ascii=False)}"


def keep_config(path: Path, text: str, changed_by: Callable[[str], str]) -> None:
    """Write a resolved configuration down, or refuse to mix runs of another one.

    Args:
        path: Where.
        text: As YAML.
        changed_by: Makes the message from the names of what has changed.

    Raises:
        ConfigError: If another one stands there.
    """
    from mttl.training.run_folder import changed_settings

    before = read_text(path, ConfigError, MOST_YAML) if path.exists() else text
    if changed := changed_settings(before, text, ignore=()):
        raise ConfigError(changed_by(", ".join(changed)))
    write_text(path, text)


def comparison_parser(
    description: str | None,
    *,
    config: str,
    out: str,
    methods: Sequence[str] = (),
    ablations: Sequence[str] = (),
) -> CommandParser:
    """Return a command line with what all comparisons take; without methods, no choice of them."""
    parser = make_parser(description)
    if methods:
        _add_methods(parser, methods, ablations)
    config_help = "the common configuration (%(default)s)"
    parser.group(READ).add_argument(
        "-c", "--config", default=config, metavar="FILE[+FILE...]", help=config_help
    )
    add_overrides(parser, "settings of all runs; ways to adapt keep those that make them")
    add = parser.group(WORK).add_argument
    seeds_help = "of training and adaptation (13 14 15)"
    add("--seeds", type=int, nargs="+", default=[13, 14, 15], metavar="N", help=seeds_help)
    add(
        "--workers",
        type=processes,
        default=2,
        metavar="N",
        help="runs at a time, each on its share of the cores (%(default)s)",
    )
    parser.group(WRITTEN).add_argument(
        "--out", default=out, metavar="DIR", help="the folder of all (%(default)s)"
    )
    return parser


def _add_methods(parser: CommandParser, methods: Sequence[str], ablations: Sequence[str]) -> None:
    more = f"; and the ablations {', '.join(ablations)} (all but those)" if ablations else " (all)"
    parser.group(COMPARED).add_argument(
        "--methods",
        nargs="+",
        default=list(methods),
        choices=[*methods, *ablations],
        metavar="METHOD",
        help=f"of {', '.join(methods)}{more}",
    )


def add_text_options(parser: CommandParser, *, folds: bool = True) -> None:
    """Let a command line take what comparisons on a gym take; some know no folds."""
    add = parser.group(READ).add_argument
    add("--tasks", default="test", help="as for pl_finetune.py (%(default)s)")
    add("--samples", metavar="N[,N...]", help="few-shot samples of every unseen task (all)")
    add = parser.group(WORK).add_argument
    add("--steps", type=positive, default=500, metavar="N", help="of training (%(default)s)")
    steps_help = "of each adaptation job (%(default)s)"
    add("--adapt-steps", type=positive, default=60, metavar="N", help=steps_help)
    if not folds:
        return
    add(
        "--folds",
        type=positive,
        metavar="F",
        help="train F times, so that every task of the partition is unseen once",
    )
    add(
        "--only-folds",
        nargs="+",
        type=positive,
        metavar="N",
        help="of these folds, from 1 on: the others on another machine or day (all)",
    )
