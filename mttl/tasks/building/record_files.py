"""Records of a file, in order, or any of them without reading the others."""

import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mttl.io.errors import TaskError
from mttl.io.reading import require_file
from mttl.tasks.building.read_records import DECODE, open_unpacked, read_records
from mttl.tasks.template_field import Record

_BLOCK = 1 << 20
_ROWS = 250
_NEWLINE, _BRACE = ord("\n"), ord("{")


class Records(Protocol):
    """The records of one split, in their order; may be read several times."""

    name: str

    def __iter__(self) -> Iterator[Record]: ...


@runtime_checkable
class RandomAccess(Protocol):
    """Records any of which can be had without reading the others."""

    name: str

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...

    def take(self, indices: NDArray[np.int64]) -> list[Record]:
        """Return the records at these places."""
        ...


def open_file(path: Path, columns: Sequence[str] = (), scratch: Path | None = None) -> Records:
    """Return the records of a file of one of `mttl.tasks.task.FILE_ENDINGS`."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return JsonLines(path, scratch)
    return FileRecords(path, columns)


class FileRecords:
    """The records of a file, in order; see `mttl.tasks.building.read_records.read_records`."""

    def __init__(self, path: Path, columns: Sequence[str] = ()):
        self.path = path
        self.name = str(path)
        self.columns = columns

    def __iter__(self) -> Iterator[Record]:
        return read_records(self.path, self.columns)


class JsonLines(FileRecords):
    """JSON Lines, with random access.

    For that the places of the lines are found once (8 bytes a line); a gzipped file is unpacked
    into a file without a name. Records that are taken are parsed, others only begin like one.
    """

    def __init__(self, path: Path, scratch: Path | None = None):
        super().__init__(path)
        self._scratch = scratch

    def __len__(self) -> int:
        return len(self._index[1]) - 1

    def __iter__(self) -> Iterator[Record]:
        if "_index" not in vars(self):
            return super().__iter__()
        n = len(self)  # it is unpacked by now; that need not be done twice
        blocks = (np.arange(start, min(start + _ROWS, n)) for start in range(0, n, _ROWS))
        return chain.from_iterable(map(self.take, blocks))

    def take(self, indices: NDArray[np.int64]) -> list[Record]:
        """Return the records at these places."""
        file, starts = self._index
        found = []
        for start, end in zip(starts[indices].tolist(), starts[indices + 1].tolist(), strict=True):
            file.seek(start)
            try:
                found.append(DECODE(file.read(end - start).decode("utf-8-sig")))
            except (ValueError, RecursionError) as error:
                self._blame(error)
        return found

    @cached_property
    def _index(self) -> tuple[IO[bytes], NDArray[np.int64]]:
        """A file that is not packed, and where its lines begin; the last place is its end."""
        try:
            return self._find_lines()
        except (EOFError, OSError, zlib.error) as error:
            self._blame(error)

    def _find_lines(self) -> tuple[IO[bytes], NDArray[np.int64]]:
        require_file(self.path, TaskError)
        packed = self.path.suffix == ".gz"
        file: Any = (  # lives as long as this object
            tempfile.TemporaryFile(dir=self._scratch) if packed else self.path.open("rb")  # noqa: SIM115
        )
        starts, end = [np.zeros(1, np.int64)], 0
        begins, regular = True, True  # whether the next byte is the first of a line
        with open_unpacked(self.path) as source:
            for block in iter(lambda: source.read(_BLOCK), b""):
                if packed:
                    file.write(block)
                data = np.frombuffer(block, np.uint8)
                after = np.flatnonzero(data == _NEWLINE) + 1
                first = np.concatenate(([0], after)) if begins else after
                begins = bool(len(after)) and bool(after[-1] == len(data))
                regular &= bool((data[first[:-1] if begins else first] == _BRACE).all())
                starts.append(end + after)
                end += len(data)
        places = np.concatenate(starts)
        places = places if begins else np.append(places, end)
        if not regular:
            self._read_in_order()  # which names the line that is wrong
            file.seek(0)  # a blank line goes to the record before it
            places = places[np.append(np.fromiter(map(bool, map(bytes.strip, file)), bool), True)]
        return file, places

    def _blame(self, error: Exception) -> NoReturn:
        self._read_in_order()
        raise error

    def _read_in_order(self) -> None:
        """Read all of the file; where a line is wrong, that names it."""
        for _ in super().__iter__():
            pass


def counted(records: Records, on_rows: Callable[[int], object]) -> Records:
    """Return the same records; `on_rows` is called with the number of those just read."""
    if isinstance(records, RandomAccess):
        return _CountedRandomAccess(records, on_rows)
    return _Counted(records, on_rows)


class _Counted:
    def __init__(self, records: Records, on_rows: Callable[[int], object]):
        self.name = records.name
        self.records, self.on_rows = records, on_rows

    def __iter__(self) -> Iterator[Record]:
        source = iter(self.records)
        while block := list(islice(source, _ROWS)):
            yield from block
            self.on_rows(len(block))


class _CountedRandomAccess(_Counted):
    records: RandomAccess

    def __len__(self) -> int:
        return len(self.records)

    def take(self, indices: NDArray[np.int64]) -> list[Record]:
        taken = self.records.take(indices)
        self.on_rows(len(taken))
        return taken
