"""What is too large or no text is refused with its name and what to do."""

import hashlib
import os
from pathlib import Path

import pytest

from mttl.errors import MOST_MESSAGE, ConfigError, TaskError, nearest
from mttl.io.reading import (
    MOST_LINE,
    check_name,
    file_sha256,
    parse_json,
    read_bytes,
    read_json,
    read_table,
    read_text,
    reason,
    require_file,
    shown,
)


def write(folder: Path, content: bytes | str) -> Path:
    path = folder / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_read_whole_without_its_mark(tmp_path: Path) -> None:
    assert read_text(write(tmp_path, b"\xef\xbb\xbfa\r\nb"), ConfigError) == "a\r\nb"
    assert read_json(write(tmp_path, '{"a": [1, 0.5, null]}'), TaskError) == {"a": [1, 0.5, None]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist: check the name"),
        (lambda path: path.mkdir(), "is a folder; it must be a regular file"),
        (lambda path: os.mkfifo(path), "is a pipe or a device; it must be a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device"),
        (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels"),
    ],
)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "it")
    with pytest.raises(TaskError, match=message):
        require_file(tmp_path / "it", TaskError)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(ConfigError, match="cannot be read"):
            require_file(name, ConfigError)


def test_a_file_that_gives_no_bytes_has_no_checksum(tmp_path: Path) -> None:
    """Memory of a process is a regular file to the system, and cannot be read at its start."""
    assert file_sha256(write(tmp_path, b"abc"), TaskError) == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(TaskError, match="'/proc/self/mem' cannot be read: Input/output error"):
        file_sha256(Path("/proc/self/mem"), TaskError)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 11 bytes; at most 10 can be read"):
        read_bytes(write(tmp_path, "x" * 11), ConfigError, 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ab\xff", r"must be UTF-8 text; byte 3 \(0xff\) is not: save the file as UTF-8"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_text(write(tmp_path, content), ConfigError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: not valid JSON: Expecting property name"),
        ('{"a": 1, "a": 2}', 'the key "a" stands there twice'),
        ("[NaN]", "NaN is no number of JSON"),
        ("[1e999]", 'the number "1e999" is too large'),
        ("9" * 5000, "not valid JSON: Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "holds \\[\\]; it must hold an object"),
    ],
)
def test_json_is_checked(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=f"place.*{message}"):
        parse_json(text, "place", TaskError, dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,a\n1,2,3\n", "line 2: 3 cells; the header has 2"),
        ("step,step\n", "none twice; its header is"),
        ("a\n", "must have the columns step"),
        ("step\n" + "x" * (MOST_LINE + 1), "line 2: field larger than field limit"),
        ('step\n"', "unexpected end of data"),
    ],
)
def test_tables_are_checked(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read_table(write(tmp_path, text), TaskError, ["step"])
    assert read_table(write(tmp_path, "step,a\n1,\n"), TaskError) == [{"step": "1", "a": ""}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (3, "is 3; it must be a name"),
        (" ", "it must be a name"),
        ("a\x1b[2J", "characters that are printed"),
        ("\ud800", "characters that are printed"),
    ],
)
def test_names_can_be_shown_anywhere(name: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_name(name, "train[0]", ConfigError)
    assert check_name("名前 <b>", "train[0]", ConfigError) == "名前 <b>"


def test_messages_are_short_and_printable() -> None:
    assert str(ConfigError("a\x1b[31m\nb\u202e")) == "a\\x1b[31m\nb\\u202e"
    assert len(str(TaskError("x" * 10**6))) < MOST_MESSAGE + 10
    assert nearest("x" * 10**6, ["x"]) == ""
    assert len(shown("x" * 1000)) == 60
    assert reason(OSError(2, "gone")) == "gone"
    assert len(reason(ValueError("y" * 1000))) == 300
