"""Cache of rows on disk with atomic entries.

Rows are written in chunks, and read from a memory-mapped Arrow file, so memory use does not depend
on their number.

An entry is built in a temporary folder and renamed, so that processes may build it concurrently;
the first one wins.
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features
from datasets.table import InMemoryTable

from mttl.io.errors import CheckpointError
from mttl.io.files import new_folder
from mttl.io.reading import file_sha256

_log = logging.getLogger(__name__)
_ROWS, _ABOUT = "rows.arrow", "about.txt"

# Writes the columns of a few rows.
Write = Callable[[Mapping[str, Sequence[Any]]], None]
# Writes all rows, and returns a description of them.
Build = Callable[[Write], str]


def in_memory(build: Build, features: Features) -> Dataset:
    """Return the rows written by ``build``, in memory."""
    schema = features.arrow_schema
    tables = [schema.empty_table()]
    about = build(lambda columns: tables.append(pa.table(dict(columns), schema=schema)))
    info = DatasetInfo(features=features, description=about)
    # Any name works; by default `datasets` would hash the content.
    return Dataset(InMemoryTable(pa.concat_tables(tables)), info, fingerprint=uuid.uuid4().hex)


def cached(build: Build, features: Features, key: str, cache_dir: str | Path) -> Dataset:
    """Return the cached rows of a key; they are built if they are missing.

    The key must depend on all inputs of ``build``. If the cache cannot be written or read, the rows
    are built in memory, with a warning.
    """
    place = Path(cache_dir) / key
    try:
        if not place.exists():
            _keep(build, features, place)
        sha256, _, about = (place / _ABOUT).read_text(encoding="utf-8").partition("\n")
        if sha256 != file_sha256(place / _ROWS, CheckpointError):
            raise CheckpointError("it is damaged; remove it")
        info = DatasetInfo(features=features, description=about)
        return Dataset.from_file(str(place / _ROWS), info=info)
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        _log.warning("the cache '%s' cannot be used (%s); continuing without it.", place, error)
        return in_memory(build, features)


def _keep(build: Build, features: Features, place: Path) -> None:
    schema = features.arrow_schema
    try:
        with new_folder(place) as building:
            with pa.ipc.new_stream(str(building / _ROWS), schema) as stream:
                about = build(lambda columns: stream.write(pa.table(dict(columns), schema=schema)))
            sha256 = file_sha256(building / _ROWS, CheckpointError)
            (building / _ABOUT).write_text(f"{sha256}\n{about}", encoding="utf-8")
    except OSError:
        # If another process was first, its rows are equal.
        if not place.exists():
            raise
