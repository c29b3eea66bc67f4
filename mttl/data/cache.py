"""A cache of rows on disk; an entry is written whole or not at all.

Rows are written as they are made, a piece at a time, and read where they lie, in an Arrow file that
is mapped into memory. So neither making nor reading rows takes more memory where there are more.

An entry is built in a folder of its own and moved into place by one rename, so that processes
that build at once do not meet: the first one there wins and the others use its work.
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

# Takes the columns of a few rows.
Write = Callable[[Mapping[str, Sequence[Any]]], None]
# Writes all rows, and returns what is to be known about them.
Build = Callable[[Write], str]


def in_memory(build: Build, features: Features) -> Dataset:
    """Return the rows that ``build`` writes, which nothing keeps."""
    schema = features.arrow_schema
    tables = [schema.empty_table()]
    about = build(lambda columns: tables.append(pa.table(dict(columns), schema=schema)))
    info = DatasetInfo(features=features, description=about)
    # Any name will do: nothing looks these rows up by their content, which `datasets` would hash.
    return Dataset(InMemoryTable(pa.concat_tables(tables)), info, fingerprint=uuid.uuid4().hex)


def cached(build: Build, features: Features, key: str, cache_dir: str | Path) -> Dataset:
    """Return the rows kept under ``key``, building and keeping them if they are not there.

    The key must change with everything that ``build`` depends on. If the cache cannot be written or
    read (no space, no permission, damage), they are built in memory, with a warning.
    """
    place = Path(cache_dir) / key
    try:
        if not place.exists():
            _keep(build, features, place)
        sha256, _, about = (place / _ABOUT).read_text(encoding="utf-8").partition("\n")
        if sha256 != file_sha256(place / _ROWS, CheckpointError):
            raise CheckpointError("it is damaged: remove it")
        info = DatasetInfo(features=features, description=about)
        return Dataset.from_file(str(place / _ROWS), info=info)
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        _log.warning("the cache '%s' cannot be used (%s); going on without.", place, error)
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
        # Where another process was first, its rows are this one's equal.
        if not place.exists():
            raise
