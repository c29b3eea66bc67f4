"""Records from the Hugging Face hub, with the library `datasets`.

Loading scripts no longer run; where a data set is one, the hub's own conversion to Parquet is read
(its revision ``refs/convert/parquet``). Where less than half of a data set is needed, it is
streamed, so that the rest is never loaded.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mttl.data.record_files import Record, Records
from mttl.data.unavailable import UnavailableError
from mttl.tasks.task import Source

PARQUET = "refs/convert/parquet"


class TableRecords:
    """Records of a table on disk, memory-mapped; read a block at a time.

    Args:
        table: A `datasets.Dataset`.
        name: Where it is from, for messages.
    """

    def __init__(self, table: Any, name: str):
        self.name = name
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), 1000):
            yield from _transposed(self._table[start : start + 1000])

    def take(self, indices: NDArray[np.int64]) -> list[Record]:
        """Return the records at these places."""
        one_by_one = len(indices) > 1 and bool((np.diff(indices) == 1).all())
        key = slice(indices[0], indices[-1] + 1) if one_by_one else indices.tolist()
        return _transposed(self._table[key])


class StreamedRecords:
    """Records that are fetched while they are read.

    Args:
        stream: A `datasets.IterableDataset`.
        name: Where it is from, for messages.
    """

    def __init__(self, stream: Any, name: str):
        self.name = name
        self._stream = stream

    def __iter__(self) -> Iterator[Record]:
        with _Explained(self.name):
            yield from self._stream


def hub_records(source: Source, split: str) -> Records:
    """Return the records of one split, from the first of the names of a data set that has them.

    Args:
        source: A source with a path.
        split: One of its splits.

    Raises:
        UnavailableError: If no name leads to them; the message has the reason for each.
    """
    reasons: list[str] = []
    names = [(str(source.path), source.revision), *((name, None) for name in source.mirrors)]
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
    page = f"https://huggingface.co/datasets/{names[-1][0]}"
    raise UnavailableError(f"{'; '.join(reasons)}. By hand: {page}, then --raw")


def _load(source: Source, name: str, revision: str | None, split: str) -> Records:
    import datasets

    shown = f"{name} on the hub, split {split}"
    with _Explained(name), _no_bars():
        if revision == PARQUET:
            # The conversion lacks a description of its parts: name the files.
            files = {split: f"{source.config or '*'}/{split}/*.parquet"}
            table = datasets.load_dataset(name, data_files=files, revision=revision, split=split)
            return TableRecords(table, shown)
        builder = datasets.load_dataset_builder(name, source.config, revision=revision)
        stream = _small_part(builder.info.splits, source)
        found = datasets.load_dataset(
            name, source.config, revision=revision, split=split, streaming=stream
        )
        return StreamedRecords(found, shown) if stream else TableRecords(found, shown)


def _small_part(splits: Any, source: Source) -> bool:
    """Return whether the source's splits are less than half of all, as far as that is known."""
    sizes = {name: info.num_bytes or 0 for name, info in (splits or {}).items()}
    wanted = sum(sizes.get(name, 0) for name in {source.train, source.test})
    return 2 * wanted < sum(sizes.values())


def _transposed(columns: dict[str, list[Any]]) -> list[Record]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


@contextmanager
def _no_bars() -> Iterator[None]:
    """Silence the bars of the library: several processes would write them over each other's."""
    import datasets

    before = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            datasets.enable_progress_bars()


class _ScriptOnlyError(UnavailableError):
    pass


class _OutOfReachError(UnavailableError):
    pass


class _Explained:
    """Turns what the library raises into the reason why a data set is unavailable."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (full := _full_disk(error)) is not None:
            raise full
        reason = _reason(error)
        if reason == "script":
            raise _ScriptOnlyError(f"'{self.name}' is a loading script") from error
        if reason == "offline":
            raise _OutOfReachError(
                "there is no way to the hub, or HF_HUB_OFFLINE is set"
            ) from error
        if reason:
            raise UnavailableError(f"'{self.name}' {reason}") from error


def _full_disk(error: BaseException | None) -> OSError | None:
    """Return what the system said, where a full disk is behind an error of the library."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error
        error = error.__cause__ or error.__context__
    return None


def _reason(error: BaseException | None) -> str | None:
    """Return why a data set is unavailable; None for what must not be swallowed."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    message = " ".join(str(error).split())
    match error:
        case RuntimeError() if "scripts are no longer supported" in message:
            return "script"
        case ConnectionError() | TimeoutError() | OfflineModeIsEnabled():
            return "offline"
        case DatasetNotFoundError() if "gated" in message:
            return (
                "is gated: accept its terms on its page on the hub, then log in with "
                "`hf auth login`"
            )
        case DatasetNotFoundError():
            return f"is not on the hub ({message})"
        case HfHubHTTPError():
            return f"was refused by the hub ({message})"
        case DatasetsError() | FileNotFoundError() | ValueError():
            # No such configuration, split or file; or files that are no table.
            return f"cannot be loaded ({message})"
    return None
