"""Errors about files name the file and say how to fix it."""

from pathlib import Path

import pytest

from mttl.io.errors import ConfigError, TaskError
from mttl.io.reading import (
    MOST_LINE,
    exact_fraction,
    parse_json,
    printable,
    read_json,
    read_table,
    read_text,
)


def write(folder: Path, content: bytes | str) -> Path:
    path = folder / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_read_whole_without_its_mark(tmp_path: Path) -> None:
    assert read_text(write(tmp_path, b"\xef\xbb\xbfa\r\nb"), ConfigError) == "a\r\nb"
    assert read_json(write(tmp_path, '{"a": [1, 0.5, null]}'), TaskError) == {"a": [1, 0.5, None]}


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "it", "does not exist; check the name"),
        (tmp_path, "is a folder; name a file"),
        (write(tmp_path, b"ab\xff"), r"must be UTF-8 text; byte 3 \(0xff\) is not; save the"),
    ):
        with pytest.raises(TaskError, match=message):
            read_text(path, TaskError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: not valid JSON: Expecting property name"),
        ('{"a": 1, "a": 2}', 'the key "a" is repeated'),
        ("[NaN]", "NaN is not a number"),
        ("[1e999]", 'the number "1e999" is too large'),
        ("9" * 5000, "not valid JSON: Exceeds the limit"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", r": contains \[\]; it must contain an object"),
    ],
)
def test_json_is_checked(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=f"place.*{message}"):
        parse_json(text, "place", TaskError, dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,a\n1,2,3\n", "line 2: 3 cells; the header has 2"),
        ("step,step\n", "each once; its header is"),
        ("a\n", "must have the columns step"),
        ("step\n" + "x" * (MOST_LINE + 1), "line 2: field larger than field limit"),
        ('step\n"', "unexpected end of data"),
    ],
)
def test_tables_are_checked(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read_table(write(tmp_path, text), TaskError, ["step"])
    assert read_table(write(tmp_path, "step,a\n1,\n"), TaskError) == [{"step": "1", "a": ""}]


@pytest.mark.parametrize("name", [3, " ", "a\x1b[2J", "\ud800"])
def test_names_can_be_shown_anywhere(name: object) -> None:
    with pytest.raises(ValueError, match="must be a name of printable characters"):
        printable(name)
    assert printable("名前 <b>") == "名前 <b>"


@pytest.mark.parametrize(
    ("share", "n", "expected"), [(0.29, 100, 29), (1.1, 50, 55), (1e-05, 10**5, 1), (2, 3, 6)]
)
def test_products_that_floats_miss(share: float, n: int, expected: int) -> None:
    assert exact_fraction(share, n) == expected
