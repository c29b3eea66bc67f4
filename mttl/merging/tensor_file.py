"""safetensors files read and written by ranges, so that no tensor has to fit into memory.

A file is ``<length of the header> <header: JSON> <bytes of all tensors>``. The library reads whole
tensors, or maps the file into memory; here a range of entries is an ordinary read.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.reading import parse_json, require_file

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Entries that are read at a time: 4 MiB of float32.
RANGE = 2**20


@dataclass(frozen=True)
class Entry:
    """Where a tensor is in its file, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size: int

    def ranges(self, length: int = RANGE) -> Iterator[tuple[int, int]]:
        """Return first and last place (exclusive) of each range of at most ``length`` entries."""
        for start in range(0, self.size, length):
            yield start, min(start + length, self.size)


@dataclass(frozen=True)
class TensorFile:
    """One safetensors file; nothing but its header is kept in memory."""

    path: Path

    @cached_property
    def header(self) -> bytes:
        """The bytes before those of the tensors."""
        with self.path.open("rb") as file:
            start = file.read(8)
            return start + file.read(int.from_bytes(start, "little"))

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All tensors by name, in the order of their bytes.

        Raises:
            CheckpointError: If the file is missing, damaged, or holds a type that cannot be merged.
        """
        require_file(self.path, CheckpointError)
        try:
            with safe_open(self.path, framework="pt"):
                pass  # it checks that header and length of the file agree
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"'{self.path}' is not valid safetensors: {error}") from error
        found: dict[str, Entry] = {}
        table = parse_json(self.header[8:], f"'{self.path}', its header", CheckpointError, dict)
        for name, item in sorted(table.items(), key=_first_byte):
            if name == "__metadata__":
                continue
            if item["dtype"] not in DTYPES:
                raise CheckpointError(
                    f"'{self.path}': '{name}' has the type {item['dtype']}; only "
                    f"{', '.join(DTYPES)} can be read. Load the model in one of these and save it"
                )
            dtype, (first, last) = DTYPES[item["dtype"]], item["data_offsets"]
            size = (last - first) // dtype.itemsize
            found[name] = Entry(dtype, tuple(item["shape"]), len(self.header) + first, size)
        return found

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Shaped[Tensor, "N"]:
        """Read a range of a tensor's entries, in the order of its memory.

        Raises:
            CheckpointError: If the file ends too early: it changed while it was read.
        """
        entry = self.entries[name]
        count = (entry.size if stop is None else stop) - start
        if count == 0:
            return torch.empty(0, dtype=entry.dtype)
        buffer = bytearray(count * entry.dtype.itemsize)
        with self.path.open("rb") as file:
            file.seek(entry.offset + start * entry.dtype.itemsize)
            if file.readinto(buffer) != len(buffer):
                raise CheckpointError(f"'{self.path}' was changed while it was read; start again")
        return torch.frombuffer(buffer, dtype=entry.dtype)


def write_like(
    template: TensorFile,
    path: Path,
    ranges: Callable[[str, Entry], Iterable[Shaped[Tensor, "N"]]],
) -> None:
    """Write a file with the names, types and shapes of another, range by range."""
    with path.open("wb") as file:
        file.write(template.header)
        for name, entry in template.entries.items():
            for values in ranges(name, entry):
                flat = values.detach().to(entry.dtype).contiguous().flatten()
                file.write(flat.view(torch.uint8).numpy().data)


def _first_byte(item: tuple[str, dict]) -> int:
    return item[1]["data_offsets"][0] if "data_offsets" in item[1] else -1
