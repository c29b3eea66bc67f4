"""The records of a task's source: from the Hugging Face hub, a folder of raw records, or own files.

A folder of raw records holds ``<data set>__<configuration, or default>/<split>.jsonl[.gz]``, all
records of a split in the hub's order, with the hub's field names.

Loading scripts no longer run; where a data set is one, the hub's own conversion to Parquet is read
(its revision ``refs/convert/parquet``). Where less than half of a data set is needed, it is
streamed, so that the rest is never loaded.
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
from mttl.tasks.rows import read_records
from mttl.tasks.task import Source
from mttl.tasks.template import Record

ADDRESS = "https://huggingface.co"
PARQUET = "refs/convert/parquet"
_SECONDS_TO_ANSWER = 10
# What the libraries between this one and the hub are called, or begin with: httpx, httpx2.
_HTTP_LIBRARIES = ("aiohttp", "httpcore", "httpx", "requests")


class UnavailableError(TaskError):
    """The records of a task cannot be had here; the message says why, and how to get them."""


class _ScriptOnlyError(UnavailableError):
    pass


class _OutOfReachError(UnavailableError):
    pass


def open_records(source: Source, split: str, raw: Path | None = None) -> Iterator[Record]:
    """Return the records of one split.

    Raises:
        UnavailableError: If they cannot be had; the message says why and what to do.
        TaskError: If a file cannot be read as records.
    """
    if source.path is None:
        return read_records(split, source.columns)
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


def hub_in_reach() -> bool:
    """Return whether the hub answers; asked once, it spares every data set a wait of 20 seconds."""
    address = os.environ.get("HF_ENDPOINT") or ADDRESS  # as the library has it
    request = urllib.request.Request(address, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:
        return True  # a refusal is an answer
    except OSError as error:
        # A certificate that is doubted here may be trusted by the library, which has its own list.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True


def hub_records(source: Source, split: str) -> Iterator[Record]:
    """Return the records of one split, from the first of the names of a data set that has them.

    If none leads to them, an `UnavailableError` has the reason for each.
    """
    reasons: list[str] = []
    names = [(str(source.path), source.revision), *((name, None) for name in source.mirrors)]
    # A name without an owner is of the hub's first years; today's libraries refuse most of them.
    names.sort(key=lambda pair: "/" not in pair[0])
    for name, revision in names:
        try:
            return _load(source, name, revision, split)
        except _ScriptOnlyError:
            try:
                return _load(source, name, PARQUET, split)
            except UnavailableError as error:
                reasons.append(f"'{name}' is a loading script, which no longer runs, and {error}")
        except _OutOfReachError as error:  # other names are as far
            reasons.append(str(error))
            break
        except UnavailableError as error:
            reasons.append(str(error))
    page = f"{ADDRESS}/datasets/{names[0][0]}"
    raise UnavailableError(f"{'; '.join(reasons)}. By hand: {page}, then --raw")


def _load(source: Source, name: str, revision: str | None, split: str) -> Iterator[Record]:
    import datasets

    with _explained(name), _no_bars():
        if revision == PARQUET:
            # Files are named, and loaded as files: the data set itself would be its script again.
            folder = f"hf://datasets/{name}@{quote(PARQUET, safe='')}"
            files = {split: f"{folder}/{source.config or '*'}/{split}/*.parquet"}
            return _read(datasets.load_dataset("parquet", data_files=files, split=split), name)
        builder = datasets.load_dataset_builder(name, source.config, revision=revision)
        stream = _small_part(builder.info.splits, source)
        given: Any = {"revision": revision, "split": split, "streaming": stream}
        return _read(datasets.load_dataset(name, source.config, **given), name)


def _read(data: Any, name: str) -> Iterator[Record]:
    """Yield the records of a table, or of a stream that is fetched while it is read."""
    with _explained(name):
        for columns in data.iter(1000):
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


def _small_part(splits: Any, source: Source) -> bool:
    """Return whether the source's splits are less than half of all, as far as that is known."""
    sizes = {name: info.num_bytes or 0 for name, info in (splits or {}).items()}
    wanted = sum(sizes.get(name, 0) for name in {source.train, source.test})
    return 2 * wanted < sum(sizes.values())


@contextmanager
def _no_bars() -> Iterator[None]:
    """Silence the bars of the library: several processes would write them over each other's."""
    import datasets

    disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not disabled:
            datasets.enable_progress_bars()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn an error of the library, but for one of the disk, into an `UnavailableError`."""
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
                kind, why = _ScriptOnlyError, "is a loading script"
            case ConnectionError() | TimeoutError() | OfflineModeIsEnabled():
                kind = _OutOfReachError
            case DatasetNotFoundError() if "gated" in message:
                why = "is gated: accept its terms on its page, then log in with `hf auth login`"
            case DatasetNotFoundError():
                why = f"is not on the hub ({message})"
            case HfHubHTTPError():
                why = f"was refused by the hub ({message})"
            case DatasetsError() | OSError() | ValueError():
                # No such configuration, split or file; or files that are damaged, or no table.
                why = f"cannot be loaded ({message})"
            case _ if type(error).__module__.startswith(_HTTP_LIBRARIES):
                kind = _OutOfReachError
            case _:
                raise
        no_way = "there is no way to the hub, or HF_HUB_OFFLINE is set"
        raise kind(f"'{name}' {why}" if why else no_way) from error
