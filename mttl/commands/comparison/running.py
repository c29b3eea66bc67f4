"""What all comparisons do: run what is missing, several at a time, in a folder of their own."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from mttl.commands.comparison.stages import Processes
from mttl.io.errors import ConfigError
from mttl.io.files import locked, write_text
from mttl.io.reading import read_text
from mttl.runtime.command import make_console
from mttl.runtime.progress_bar import counting_bar

Item = TypeVar("Item")


def run_all(
    todo: Sequence[Item],
    run: Callable[[Item, Processes], object],
    *,
    n_workers: int,
    name: Callable[[Item], str],
    ended: Callable[[], object],
) -> None:
    """Run items several at a time, with a progress bar."""
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
    from mttl.checkpoints.run_folder import changed_settings

    before = read_text(path, ConfigError) if path.exists() else text
    if changed := changed_settings(before, text, ignore=()):
        raise ConfigError(changed_by(", ".join(changed)))
    write_text(path, text)
