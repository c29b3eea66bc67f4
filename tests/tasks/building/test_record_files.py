import gzip

import numpy as np
import pytest

from helpers.raw import rows, write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.building import record_files
from mttl.tasks.building.record_files import (
    FileRecords,
    JsonLines,
    RandomAccess,
    counted,
    open_file,
)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("end", ["\n", ""])
def test_any_record_can_be_taken(tmp_path, monkeypatch, name, block, end):
    """However the lines fall on the blocks that are read, and whether the last line ends or not."""
    monkeypatch.setattr(record_files, "_BLOCK", block)
    records = rows(11)
    path = write_jsonl(tmp_path / name, records)
    if not end:
        data = (gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes())[
            :-1
        ]
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = open_file(path)
    assert isinstance(found, RandomAccess)
    assert len(found) == 11
    assert found.take(np.array([10, 0, 3, 3])) == [records[i] for i in (10, 0, 3, 3)]
    assert list(found) == list(open_file(path)) == records
    assert len(list(tmp_path.iterdir())) == 1


def test_tables_are_read_in_order(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("1\t2\n")
    found = open_file(path, ("a", "b"))
    assert isinstance(found, FileRecords)
    assert not isinstance(found, RandomAccess)
    assert list(found) == list(found) == [{"a": "1", "b": "2"}]


def test_an_empty_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"")
    assert len(JsonLines(path)) == 0
    assert list(JsonLines(path)) == []


def test_lines_may_be_blank_be_indented_and_begin_with_a_mark(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('\ufeff{"a": 1}\n \n\n  {"a": 2}\n\r\n', encoding="utf-8")
    assert len(JsonLines(path)) == 2
    assert JsonLines(path).take(np.array([1, 0])) == [{"a": 2}, {"a": 1}]


@pytest.mark.parametrize("line", ['{"a":', '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": -1e999}'])
def test_a_broken_line_is_named_when_it_is_taken(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    found = JsonLines(path)
    assert found.take(np.array([2])) == [{"a": 2}]
    with pytest.raises(TaskError, match=r"x\.jsonl, line 2(, column \d+)?: not valid JSON"):
        found.take(np.array([2, 1]))


def test_an_archive_that_is_cut_off(tmp_path):
    path = write_jsonl(tmp_path / "x.jsonl.gz", rows(5000))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(TaskError, match="is cut short or damaged after line"):
        len(JsonLines(path))


@pytest.mark.parametrize("n", [0, 999, 1000, 2500])
def test_records_are_counted_while_they_are_read(n):
    told: list[int] = []
    name_and_rows = FileRecordsInMemory(rows(n))
    assert list(counted(name_and_rows, told.append)) == rows(n)
    assert sum(told) == n
    assert max(told, default=0) <= 1000


class FileRecordsInMemory:
    def __init__(self, records):
        self.name, self.records = "memory", records

    def __iter__(self):
        return iter(self.records)
