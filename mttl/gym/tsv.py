"""One file of a gym: a line is `input<TAB>output[<TAB>another accepted output ...]`, in UTF-8.

There is no quoting and no header. A reader of damaged data should never train on it by accident,
so every malformed line is an error that names the file, the line and the reason.
"""

from dataclasses import dataclass
from pathlib import Path

from mttl.errors import TaskError
from mttl.reading import MOST_LINE, read_bytes


@dataclass(frozen=True)
class Row:
    """One example: what goes in, and every output that counts as right (the first is trained)."""

    input: str
    outputs: tuple[str, ...]


def read_rows(path: Path, max_rows: int | None = None) -> list[Row]:
    """Read one file; see `parse_rows`.

    Raises:
        TaskError: If the file cannot be read, is empty, or holds a malformed line.
    """
    return parse_rows(read_bytes(path, TaskError), path, max_rows)


def parse_rows(data: bytes, path: Path, max_rows: int | None = None) -> list[Row]:
    r"""Parse the bytes of one file.

    Lines end with ``\n``; ``\r\n`` and a byte order mark are accepted, and a lone ``\r`` inside a
    line becomes a blank. Blanks around a field are dropped: predictions are stripped before they
    are scored, so a reference that kept its own could never be met.

    Args:
        data: The content of the file.
        path: Where it came from, for messages.
        max_rows: Read only so many rows, spread evenly.

    Raises:
        TaskError: If there is no row, or a line that is read is malformed.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows ({max_rows}) must be at least 1, or None for all rows.")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise TaskError(f"'{path}' is empty; it must hold at least one line 'input<TAB>output'.")
    if b"\r" in data and b"\n" not in data:
        raise TaskError(
            f"'{path}' ends its lines with carriage returns alone; save it with '\\n' line ends."
        )
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    n_rows = len(lines) if max_rows is None else min(max_rows, len(lines))
    # CrossFit's files are sorted by label: the first rows would be of one label.
    numbers = [place * len(lines) // n_rows for place in range(n_rows)]
    return [_parse_line(lines[n], f"{path}, line {n + 1}") for n in numbers]


def _parse_line(line: bytes, place: str) -> Row:
    if len(line) > MOST_LINE:
        raise TaskError(f"{place}: {len(line):,} bytes; a line has at most {MOST_LINE:,}.")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8; "
            "save the file as UTF-8."
        ) from error
    if "\t" not in text:
        shown = text.strip()[:40]
        raise TaskError(f"{place}: no tab between input and output, got '{shown}'.")
    source, *outputs = (field.strip() for field in text.replace("\r", " ").split("\t"))
    if not source:
        raise TaskError(f"{place}: the input (before the first tab) is empty.")
    for n, output in enumerate(outputs, 1):
        if not output:
            which = "the output" if len(outputs) == 1 else f"output {n} of {len(outputs)}"
            raise TaskError(f"{place}: {which} is empty.")
    return Row(source, tuple(outputs))
