"""Read the records of a task's source: from the Hugging Face hub, raw files, or custom files.

A folder of raw records has ``<data set>__<configuration, or default>/<split>.jsonl[.gz]`` with all
records of a split in the hub's order, and the hub's field names.

Loading scripts no longer run; for such data sets the hub's conversion to Parquet is read (revision
``refs/convert/parquet``). If less than half of a data set is needed, it is streamed.
"""

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mttl.io.errors import TaskError
from mttl.io.files import DISK_REFUSES
from mttl.tasks.rows import read_records, record_files
from mttl.tasks.sample_files import file_records
from mttl.tasks.task import Source
from mttl.tasks.template import Record

ADDRESS = "https://huggingface.co"
PARQUET = "refs/convert/parquet"
_SECONDS_TO_ANSWER = 10
# Prefixes of the libraries between `datasets` and the hub.
_HTTP_LIBRARIES = ("aiohttp", "httpcore", "httpx", "requests")


class UnavailableError(TaskError):
    """The records of a task cannot be obtained; the message has the reason and a remedy."""


class _ScriptOnlyError(UnavailableError):
    pass


class _OutOfReachError(UnavailableError):
    pass


def open_records(source: Source, split: str, raw: Path | None = None) -> Iterator[Record]:
    """Return the records of one split.

    Raises an `UnavailableError` with a remedy if they cannot be obtained, and a `TaskError` if a
    file cannot be read as records.
    """
    if source.path is None:
        return file_records(source, split)
    if raw is not None:
        return read_records(raw_file(source, split, raw))
    if source.unavailable is not None:
        raise UnavailableError(source.unavailable)
    return hub_records(source, split)


def raw_file(source: Source, split: str, raw: Path) -> Path:
    """Return the existing file of a split in a folder of raw records."""
    # The hub has moved most data sets into their owners' namespaces; the name itself is unchanged.
    name = (source.path or "").rsplit("/", 1)[-1]
    path = raw / f"{name}__{source.config or 'default'}" / f"{split}.jsonl"
    for file in (path.with_name(f"{path.name}.gz"), path):
        if file.is_file():
            return file
    raise UnavailableError(f"'{raw}' has no file {path.relative_to(raw)}[.gz]")


def local_files(source: Source, raw: Path | None) -> list[Path]:
    """Return the existing files that a source is read from."""
    if source.path is None:
        files = (file for split in source.splits for file in record_files(split))
        return [file for file in files if file.is_file()]
    try:
        return [] if raw is None else [raw_file(source, split, raw) for split in source.splits]
    except UnavailableError:
        return []


def hub_in_reach() -> bool:
    """Return whether the hub is reachable; avoids a wait of 20 seconds per data set."""
    address = os.environ.get("HF_ENDPOINT") or ADDRESS  # as in the library
    request = urllib.request.Request(address, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:
        return True  # a rejection is a response
    except OSError as error:
        # The library has its own list of certificates.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True


def hub_records(source: Source, split: str) -> Iterator[Record]:
    """Return the records of one split, from the first working name of a data set.

    If all names fail, an `UnavailableError` has the reason for each.
    """
    reasons: list[str] = []
    names = [(str(source.path), source.revision), *((name, None) for name in source.mirrors)]
    # Names without an owner are old; current libraries reject most of them.
    names.sort(key=lambda pair: "/" not in pair[0])
    for name, revision in names:
        try:
            return _load(source, name, revision, split)
        except _ScriptOnlyError:
            try:
                return _load(source, name, PARQUET, split)
            except UnavailableError as error:
                reasons.append(f"'{name}' is a loading script, which no longer runs, and {error}")
        except _OutOfReachError as error:  # other names are unreachable too
            reasons.append(str(error))
            break
        except UnavailableError as error:
            reasons.append(str(error))
    page = f"{ADDRESS}/datasets/{names[0][0]}"
    raise UnavailableError(f"{'; '.join(reasons)}. Download it from {page}, then use --raw")


def _load(source: Source, name: str, revision: str | None, split: str) -> Iterator[Record]:
    import datasets

    with _explained(name):
        if revision == PARQUET:
            # Files are loaded directly, because the data set itself would run its script.
            folder = f"hf://datasets/{name}@{quote(PARQUET, safe='')}"
            files = {split: f"{folder}/{source.config or '*'}/{split}/*.parquet"}
            return _read(datasets.load_dataset("parquet", data_files=files, split=split), name)
        builder = datasets.load_dataset_builder(name, source.config, revision=revision)
        # A data set of which less than half is needed is streamed.
        sizes = {part: info.num_bytes or 0 for part, info in (builder.info.splits or {}).items()}
        wanted = sum(sizes.get(part, 0) for part in {source.train, source.test})
        stream = 2 * wanted < sum(sizes.values())
        given: Any = {"revision": revision, "split": split, "streaming": stream}
        return _read(datasets.load_dataset(name, source.config, **given), name)


def _read(data: Any, name: str) -> Iterator[Record]:
    with _explained(name):
        for columns in data.iter(1000):
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors of the library, except disk errors, into an `UnavailableError`."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in DISK_REFUSES:
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        message = " ".join(str(error).split())
        kind, why = UnavailableError, ""
        match error:
            case RuntimeError() if "scripts are no longer supported" in message:
                kind, why = _ScriptOnlyError, "uses a loading script"
            case ConnectionError() | TimeoutError() | OfflineModeIsEnabled():
                kind = _OutOfReachError
            case DatasetNotFoundError() if "gated" in message:
                why = "is gated; accept its terms on its page, then log in with `hf auth login`"
            case HfHubHTTPError() | DatasetsError() | OSError() | ValueError():
                # Rejected, unknown (also a configuration, split or file), or damaged.
                why = f"cannot be loaded ({message})"
            case _ if type(error).__module__.startswith(_HTTP_LIBRARIES):
                kind = _OutOfReachError
            case _:
                raise
        no_way = "the hub is unreachable, or HF_HUB_OFFLINE is set"
        raise kind(f"'{name}' {why}" if why else no_way) from error
