r"""Files of rows and files of records, in UTF-8.

A line of a gym's file is a row: ``input<TAB>output[<TAB>another accepted output ...]`` in TSV,
which has no quoting and no header; ``{"input": "...", "outputs": ["...", ...]}`` and optionally
``"columns": {...}``, for metrics, in JSON Lines. Malformed lines raise errors with file and line.
"""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self

from mttl.io.errors import TaskError
from mttl.io.reading import decoded, parse_json, reason, require_file, shown, table_rows

TSV, JSON_LINES = ".tsv", ".jsonl"
ENDINGS = (TSV, JSON_LINES)
# Endings of record files: a table or JSON Lines, optionally compressed, or Parquet.
RECORD_ENDINGS = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz", ".parquet")
TEXT_ENDINGS = (".txt", ".txt.gz")  # each line that is not blank is a record
ALL_ENDINGS = (*RECORD_ENDINGS, *TEXT_ENDINGS)
DELIMITERS = ",;\t|"
LOGS = "logs.json"  # of DSTC
_BLANK = b"\xef\xbb\xbf \r\n"  # the first three bytes are a byte order mark
_ENCODINGS = "utf-8-sig", "utf-8"  # of the first line, and of others
_FORM = {TSV: "input<TAB>output", JSON_LINES: '{"input": "...", "outputs": ["..."]}'}


@dataclass(frozen=True)
class Row:
    """One example: the input, and all accepted outputs (the first is trained)."""

    input: str
    outputs: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> dict[str, Any]:
        """The input and other columns, as metrics receive them."""
        return {"input": self.input, "columns": self.columns}


@dataclass(frozen=True)
class RowFile:
    """A file whose rows are read one by one, without loading it as a whole."""

    path: Path
    n_lines: int
    digest: str

    @classmethod
    def scan(cls, path: Path) -> Self:
        """Count the lines and hash a file; raises a `TaskError` if it is missing or empty."""
        require_file(path, TaskError)
        digest, n_lines = hashlib.sha256(), 0
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                n_lines += bool(line.strip(_BLANK))
        if not n_lines:
            needed = _FORM[path.suffix]
            raise TaskError(f"'{path}' is empty; it must have at least one line '{needed}'.")
        if n_lines == 1 and b"\r" in line and not line.endswith(b"\n"):
            raise TaskError(f"'{path}' has carriage returns as line ends; save it with line feeds.")
        return cls(path, n_lines, digest.hexdigest())

    def rows(self, max_rows: int | None = None) -> Iterator[Row]:
        r"""Yield the rows, or ``max_rows`` of them, evenly spaced.

        Lines end with ``\n``; ``\r\n`` and a byte order mark are accepted, and a single ``\r``
        inside a TSV line becomes a blank. Blank lines are skipped. Texts are stripped, because
        predictions are stripped before scoring. Raises a `TaskError` if a line that is read is
        malformed.
        """
        parse = _parse_json_line if self.path.suffix == JSON_LINES else _parse_tsv_line
        n_rows = min(max_rows or self.n_lines, self.n_lines)
        # CrossFit's files are sorted by label, so the first rows would have one label.
        wanted = (place * self.n_lines // n_rows for place in range(n_rows))
        number, n = next(wanted), 0
        with self.path.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                if not line.strip(_BLANK):
                    continue
                if n == number:
                    place = f"{self.path}, line {line_number}"
                    text = decoded(line, place, TaskError, encoding=_ENCODINGS[line_number > 1])
                    yield parse(text.removesuffix("\n").removesuffix("\r"), place)
                    number = next(wanted, -1)
                n += 1


def line_of(
    ending: str, source: str, outputs: Sequence[str], columns: Mapping[str, Any] | None = None
) -> str:
    """Return a row as a line of a file; TSV texts must not have tabs or line breaks."""
    if ending == TSV:
        return "\t".join((source, *outputs)) + "\n"
    more = {"columns": columns} if columns else {}
    row = {"input": source, "outputs": list(outputs), **more}
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def _parse_tsv_line(text: str, place: str) -> Row:
    if "\t" not in text:
        raise TaskError(f"{place}: no tab between input and output in '{text.strip()[:40]}'.")
    source, *outputs = text.replace("\r", " ").split("\t")
    return _row(source, outputs, place)


def _parse_json_line(text: str, place: str) -> Row:
    match parse_json(text, place, TaskError):
        case {"input": str(source), "outputs": [_, *_] as outputs, **more}:
            columns = more.pop("columns", {})
            texts = all(isinstance(output, str) for output in outputs)
            if texts and not more and isinstance(columns, dict):
                return _row(source, outputs, place, columns)
    raise TaskError(f"{place}: {shown(text)} is not a row; it must look like {_FORM[JSON_LINES]}.")


def _row(
    source: str, outputs: Sequence[str], place: str, columns: Mapping[str, Any] | None = None
) -> Row:
    source, outputs = source.strip(), [output.strip() for output in outputs]
    if not (source and all(outputs)):
        which = "the input"
        if source:
            number, count = outputs.index("") + 1, len(outputs)
            which = "the output" if count == 1 else f"output {number} of {count}"
        raise TaskError(f"{place}: {which} is empty.")
    return Row(source, tuple(outputs), columns or {})


def is_saved(path: str | Path) -> bool:
    """Return whether a folder is a data set that `datasets.Dataset.save_to_disk` wrote."""
    return (Path(path) / "state.json").is_file()


def record_files(path: str | Path) -> list[Path]:
    """Return the files of a source: a record file, or the files of a saved data set or of DSTC."""
    if Path(path).name == LOGS:
        return dstc_files(path)
    return sorted(Path(path).iterdir()) if is_saved(path) else [Path(path)]


def dstc_files(logs: str | Path) -> list[Path]:
    """Return the logs, labels and knowledge of dialogues of DSTC."""
    folder = Path(logs).parent
    beside = folder / "knowledge.json"
    above = folder.parent / beside.name
    return [Path(logs), folder / "labels.json", beside if beside.is_file() else above]


def read_records(
    path: str | Path, columns: Sequence[str] = (), delimiter: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records of a file or of a saved data set, without loading it as a whole.

    TSV is read without quoting, CSV with; ``columns`` are those of a file without a header. The
    default ``delimiter`` is a tab for TSV, and for CSV a comma, or another of `DELIMITERS` if the
    first line has no comma. Records are texts by column, lines of JSON, values of a table, or lines
    of text (``text``). Raises a `TaskError` if the file is missing or truncated, or a line is
    malformed.
    """
    path = Path(path)
    saved = is_saved(path)
    is_table = not saved and bool({".tsv", ".csv"} & {*path.suffixes[-2:]})
    if not saved and not path.name.endswith(ALL_ENDINGS):
        allowed = ", ".join(ALL_ENDINGS)
        raise TaskError(f"'{path}' must end in one of {allowed}, or be a saved data set.")
    if (columns or delimiter) and not is_table:
        advice = "remove 'columns' and 'delimiter', which are for tables"
        raise TaskError(f"'{path}': its fields have names; {advice}.")
    if saved or path.suffix == ".parquet":
        yield from _arrow_records(path, saved=saved)
    elif is_table:
        lines, quoted = text_lines(path), ".csv" in path.suffixes[-2:]
        first = next(lines, "")
        if delimiter is None:
            delimiter = delimiter_of(first) if quoted else "\t"
        advice = "Correct the line, or set the separator of the cells by 'delimiter' in source"
        table = {"delimiter": delimiter, "quoted": quoted, "names": columns, "advice": advice}
        lines = chain([first], lines)
        yield from (row for _, row in table_rows(lines, str(path), TaskError, **table))
    elif path.name.endswith(TEXT_ENDINGS):
        yield from ({"text": line.strip()} for line in text_lines(path) if line.strip())
    else:
        for number, line in enumerate(text_lines(path), 1):
            if line.strip():
                yield parse_json(line, f"{path}, line {number}", TaskError, dict)


def _arrow_records(path: Path, *, saved: bool) -> Iterator[dict[str, Any]]:
    """Yield the records of a Parquet file or a saved data set, as stored."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not saved:
        require_file(path, TaskError)
    try:
        if saved:
            import datasets

            data: Any = datasets.load_from_disk(str(path))
            batches = data.with_format("arrow").iter(1000)
        else:
            batches = pq.ParquetFile(path).iter_batches(1000)
        for batch in batches:
            yield from batch.to_pylist()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise TaskError(f"'{path}' cannot be read ({reason(error)}); copy it again") from error


def delimiter_of(line: str) -> str:
    """Return the separator of a CSV's first line: a comma, or else the one with the most cells."""
    counts = dict.fromkeys(DELIMITERS, 1)
    with suppress(csv.Error):
        for mark in DELIMITERS:
            counts[mark] = len(next(csv.reader([line], delimiter=mark), ()))
    return "," if counts[","] > 1 else max(DELIMITERS, key=counts.__getitem__)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines with their ends; only a line feed ends a line."""
    require_file(path, TaskError)
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                place, encoding = f"{path}, line {number}", _ENCODINGS[number > 1]
                yield decoded(line, place, TaskError, encoding=encoding)
    except (EOFError, OSError, zlib.error) as error:
        problem = f"cannot read '{path}': {reason(error)}"
        if not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile):
            problem = (
                f"'{path}' is truncated or damaged after line {number} ({error}); download it again"
            )
        raise TaskError(f"{problem}.") from error
