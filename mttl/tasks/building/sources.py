"""The records of a task's source: from the hub, from a folder of raw records, or from own files.

A folder of raw records holds ``<data set>__<configuration, or default>/<split>.jsonl[.gz]``, all
records of a split in the hub's order, with the hub's field names.
"""

from collections.abc import Iterator
from pathlib import Path

from mttl.tasks.building.hub import UnavailableError, hub_records
from mttl.tasks.read_records import from_files, read_records
from mttl.tasks.task import Source
from mttl.tasks.template_field import Record


def open_records(source: Source, split: str, raw: Path | None = None) -> Iterator[Record]:
    """Return the records of one split.

    Raises:
        UnavailableError: If they cannot be had; the message says why and what to do.
        TaskError: If a file cannot be read as records.
    """
    if source.path is None:
        return from_files(source, split)
    if raw is not None:
        return read_records(_raw_file(source, split, raw))
    if source.unavailable is not None:
        raise UnavailableError(source.unavailable)
    return hub_records(source, split)


def _raw_file(source: Source, split: str, raw: Path) -> Path:
    # The hub has put most sets into the folder of their makers since; the rest of the name is kept.
    name = (source.path or "").rsplit("/", 1)[-1]
    path = raw / f"{name}__{source.config or 'default'}" / f"{split}.jsonl"
    for file in (path.with_name(f"{path.name}.gz"), path):
        if file.is_file():
            return file
    raise UnavailableError(f"'{raw}' has no file {path.relative_to(raw)}[.gz]")


def local_files(source: Source, raw: Path | None) -> list[Path]:
    """Return the files that a source is read from, where it is read from files that exist."""
    if source.path is None:
        return [path for path in map(Path, source.splits) if path.is_file()]
    try:
        return [] if raw is None else [_raw_file(source, split, raw) for split in source.splits]
    except UnavailableError:
        return []
