"""The records of a task's source: from the hub, from a folder of raw records, or from own files.

A folder of raw records holds ``<data set>__<configuration, or default>/<split>.jsonl[.gz]``, all
records of a split in the hub's order, with the hub's field names.
"""

from pathlib import Path

from mttl.tasks.building.hub import UnavailableError, hub_records
from mttl.tasks.building.record_files import Records, open_file
from mttl.tasks.task import Source


def open_records(
    source: Source, split: str, *, raw: Path | None = None, scratch: Path | None = None
) -> Records:
    """Return the records of one split.

    Raises:
        UnavailableError: If they cannot be had; the message says why and what to do.
        TaskError: If a file cannot be read as records.
    """
    if source.path is None:
        path = Path(split)
        if not path.is_file():
            raise UnavailableError(f"the file '{path}' does not exist")
        return open_file(path, source.columns, scratch)
    if raw is not None:
        return open_file(raw_file(source, split, raw), scratch=scratch)
    if source.unavailable is not None:
        raise UnavailableError(source.unavailable)
    return hub_records(source, split)


def raw_file(source: Source, split: str, raw: Path) -> Path:
    """Return the file of one split in a folder of raw records.

    Raises:
        UnavailableError: If there is none.
    """
    # The hub has put most sets into the folder of their makers since; the rest of the name is kept.
    name = (source.path or "").rsplit("/", 1)[-1]
    folder = raw / f"{name}__{source.config or 'default'}"
    for ending in (".jsonl.gz", ".jsonl"):
        path = folder / f"{split}{ending}"
        if path.is_file():
            return path
    raise UnavailableError(f"'{raw}' has no file {folder.name}/{split}.jsonl[.gz]")


def local_files(source: Source, raw: Path | None) -> list[Path]:
    """Return the files that a source is read from, where it is read from files that exist."""
    if source.path is None:
        return [path for path in map(Path, source.splits) if path.is_file()]
    if raw is None:
        return []
    try:
        return [raw_file(source, split, raw) for split in source.splits]
    except UnavailableError:
        return []
