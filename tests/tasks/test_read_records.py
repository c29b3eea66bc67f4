import gzip
import io
import os

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.read_records import read_records


def write(path, data):
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("jsonl", '{"a": "1", "b": "x\\ty"}\n \n{"a": "2", "b": "é\u2028\x85z"}\n\n'),
        ("tsv", 'a\tb\n1\t"x\n\r\n2\té\u2028\x85z\n \n'),
        ("csv", 'a,b\r\n1,"x\ny"\r\n\r\n2,é\u2028\x85z\r\n  \n'),
    ],
)
def test_formats(tmp_path, kind, text, ending):
    """Only a line feed ends a line: text may hold other separators."""
    found = list(read_records(write(tmp_path / f"x.{kind}{ending}", "\ufeff" + text)))
    second = {"jsonl": "x\ty", "tsv": '"x', "csv": "x\ny"}[kind]
    assert found == [{"a": "1", "b": second}, {"a": "2", "b": "é\u2028\x85z"}]


@pytest.mark.parametrize(
    "unusual", ['  {"a": 9}\n', '{"a": 9} \n', '\ufeff{"a": 9}\n', '{"a": 9}\r\n']
)
def test_unusual_lines_of_json(tmp_path, unusual):
    """After so many lines that they are not all read at once."""
    first, last = (unusual, "") if unusual[0] == "\ufeff" else ("", unusual)
    usual = [f'{{"a": {i}}}\n' for i in range(20_000)]
    found = list(read_records(write(tmp_path / "x.jsonl.gz", first + "".join(usual) + last)))
    numbers = [record["a"] for record in found]
    assert sorted(numbers) == sorted([*range(20_000), 9])
    assert numbers[0 if first else -1] == 9


def test_columns_are_named_where_there_is_no_header(tmp_path):
    path = write(tmp_path / "x.tsv", "1\t2\n3\t4\n")
    assert list(read_records(path, ("a", "b"))) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.jsonl", '{"a": 1}\n{"a": \n', r"x\.jsonl, line 2, column 1?\d: not valid JSON"),
        ("x.jsonl", '{"a": 1, "a": 2}\n', 'line 1: not valid JSON: the key "a" is repeated'),
        ("x.jsonl", '{"a": 1}\n[1]\n', r"x\.jsonl, line 2: holds \[1\]; it must hold an object"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"line 2: byte 8 \(0xff\) is not valid UTF-8"),
        ("x.tsv", "a\tb\n1\t2\n3\n", r"x\.tsv, line 3: 1 cells; the header has 2 \(a, b\)"),
        ("x.csv", 'a,b\n1,"2\n', r"x\.csv, line 2: unexpected end of data"),
        ("x.parquet", "", r"must be a file of one of the kinds \.tsv, \.csv, \.jsonl"),
    ],
)
def test_malformed_files(tmp_path, name, text, message):
    with pytest.raises(TaskError, match=message):
        list(read_records(write(tmp_path / name, text)))


def test_json_lines_have_no_columns(tmp_path):
    path = write(tmp_path / "x.jsonl", "{}\n")
    with pytest.raises(TaskError, match="JSON Lines name their fields; leave 'columns' out"):
        list(read_records(path, ("a",)))


def test_damage_inside_an_archive(tmp_path):
    path = write(tmp_path / "x.jsonl.gz", os.urandom(9).hex() * 400)
    data = bytearray(path.read_bytes())
    data[12:20] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(TaskError, match="is cut short or damaged after line 0"):
        list(read_records(path))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TaskError, match=r"'.*none\.jsonl' does not exist"):
        list(read_records(tmp_path / "none.jsonl"))
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(TaskError, match=r"'.*folder\.tsv' is a folder"):
        list(read_records(tmp_path / "folder.tsv"))


def test_a_disk_that_fails_while_it_is_read(tmp_path, monkeypatch):
    from mttl.tasks import read_records as module

    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    path = write(tmp_path / "x.jsonl.gz", "")
    monkeypatch.setattr(module.gzip, "GzipFile", lambda *_: io.BufferedReader(Failing()))
    with pytest.raises(TaskError, match=r"cannot read '.*x.jsonl.gz': Input/output error"):
        list(read_records(path))
