import gzip
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mttl.io.errors import TaskError
from mttl.tasks.rows import Row, RowFile, line_of, read_records

PATH = Path("task_16_100_train.tsv")


def parse_rows(data, path, max_rows=None):
    with TemporaryDirectory() as folder:
        (Path(folder) / path).write_bytes(data)
        return list(RowFile.scan(Path(folder) / path).rows(max_rows))


@pytest.mark.parametrize(
    "data",
    [
        b"a\tb\nc\td\n",
        b"a\tb\nc\td",
        b"a\tb\r\nc\td\r\n",
        b"\xef\xbb\xbfa\tb\nc\td\n",
        b" a\tb \nc \t d\n",
        b"\xef\xbb\xbf\n \na\tb\n\r\nc\td\n\n",
    ],
    ids=["plain", "no last line end", "windows", "byte order mark", "outer blanks", "blank lines"],
)
def test_variants_of_the_same_file_read_alike(data):
    assert parse_rows(data, PATH) == [Row("a", ("b",)), Row("c", ("d",))]
    assert [row.input for row in parse_rows(data, PATH, max_rows=1)] == ["a"]


def test_max_rows_reads_rows_from_all_over_the_file():
    """Sorted by label, as CrossFit's files are, every label is met."""
    data = b"a\t0\nb\t0\nc\t1\nd\t1\ne\t2\nf\t2\n"
    assert [row.input for row in parse_rows(data, PATH, max_rows=3)] == ["a", "c", "e"]
    assert [row.input for row in parse_rows(data, PATH, max_rows=4)] == ["a", "b", "d", "e"]
    assert len(parse_rows(data, PATH, max_rows=9)) == 6
    assert len(parse_rows(b"a\tb\nc\td\nbroken\n", PATH, max_rows=2)) == 2


JSON = Path("task_16_100_train.jsonl")


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        (PATH, b"", "is empty; it must have at least one line '"),
        (PATH, b"a\tb\rc\td\r", "has carriage returns as line ends; save it with line feeds"),
        (PATH, b"a\tb\nno answer\n", "line 2: no tab between input and output in 'no answer'."),
        (PATH, b"a\tb\n \r\n\tc\n", r"line 3: the input is empty"),
        (PATH, b"a\tb\t \tc\n", "line 1: output 2 of 3 is empty"),
        (JSON, b"", "is empty; it must have at least one line '\\{\"input"),
        (JSON, b"a\tb", r"line 1, column 1: not valid JSON"),
        (JSON, b'["a"]', r'line 1: .* is not a row; it must look like \{"input": "..."'),
        (JSON, b'{"input": "a", "outputs": ["b"], "more": 1}', "is not a row"),
        (JSON, b'{"input": 3, "outputs": ["b"]}', "is not a row"),
        (JSON, b'{"input": " ", "outputs": ["b"]}', "line 1: the input is empty"),
    ],
)
def test_malformed_files_are_errors_with_file_line_and_reason(path, data, message):
    with pytest.raises(TaskError, match=message) as error:
        parse_rows(data, path)
    assert path.name in str(error.value)


# Text as a gym may hold it: nothing strippable outside; in TSV no separator inside.
any_text = st.text(st.characters(exclude_categories=["Cs"])).map(str.strip).filter(bool)
without_tabs = st.text(
    st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"])
).filter(lambda text: text and text == text.strip() and not text.startswith("\ufeff"))


def rows_of(text):
    return st.lists(st.tuples(text, st.lists(text, min_size=1, max_size=3)), min_size=1)


@given(rows_of(without_tabs), rows_of(any_text))
def test_what_is_written_is_read(tabular, free):
    for path, rows in ((PATH, tabular), (JSON, free)):
        lines = [line_of(path.suffix, source, outputs) for source, outputs in rows]
        expected = [Row(source, tuple(outputs)) for source, outputs in rows]
        assert parse_rows("".join(lines).encode(), path) == expected


def write(path, data):
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("jsonl", '  {"a": "1", "b": "x\\ty"}\n \n{"a": "2", "b": "é\u2028\x85z"} \r\n\n'),
        ("tsv", 'a\tb\n1\t"x\n\r\n2\té\u2028\x85z\n \n'),
        ("csv", 'a,b\r\n1,"x\ny"\r\n\r\n2,é\u2028\x85z\r\n  \n'),
    ],
)
def test_formats(tmp_path, kind, text, ending):
    """Only a line feed ends a line: text may hold other separators."""
    found = list(read_records(write(tmp_path / f"x.{kind}{ending}", "\ufeff" + text)))
    second = {"jsonl": "x\ty", "tsv": '"x', "csv": "x\ny"}[kind]
    assert found == [{"a": "1", "b": second}, {"a": "2", "b": "é\u2028\x85z"}]


def test_columns_are_named_where_there_is_no_header(tmp_path):
    path = write(tmp_path / "x.tsv", "1\t2\n3\t4\n")
    assert list(read_records(path, ("a", "b"))) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    with pytest.raises(TaskError, match=": its fields have names; remove 'columns' and"):
        list(read_records(write(tmp_path / "x.jsonl", "{}\n"), ("a",)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.jsonl", '{"a": 1}\n{"a": \n', r"x\.jsonl, line 2, column 1?\d: not valid JSON"),
        ("x.jsonl", '{"a": 1}\n[1]\n', r"x\.jsonl, line 2: contains \[1\]; it must contain an"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"line 2 must be UTF-8 text; byte 8 \(0xff\)"),
        ("x.tsv", "a\tb\n1\t2\n3\n", r"x\.tsv, line 3: 1 cells; the header has 2 \(a, b\)"),
        ("x.csv", 'a,b\n1,"2\n', r"x\.csv, line 2: unexpected end of data"),
        ("x.md", "", " must end in one of .tsv, .csv, .jsonl"),
    ],
)
def test_malformed_files(tmp_path, name, text, message):
    with pytest.raises(TaskError, match=message):
        list(read_records(write(tmp_path / name, text)))


def test_damage_inside_an_archive_and_a_disk_that_fails(tmp_path, monkeypatch):
    path = write(tmp_path / "x.jsonl.gz", os.urandom(9).hex() * 400)
    data = bytearray(path.read_bytes())
    data[12:20] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(TaskError, match=r"' is truncated or damaged after line 0.* \(.*\);"):
        list(read_records(path))

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(gzip, "open", fail)
    with pytest.raises(TaskError, match=r"cannot read '.*x.jsonl.gz': Input/output error"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("name", "text", "delimiter"),
    [
        ("x.csv", 'a;b\n"1;2";3,4\n', None),
        ("x.csv", 'a\tb\n"1;2"\t3,4\n', None),
        ("x.csv", "a|b\n1;2|3,4\n", None),
        ("x.csv", '"a"#b\n1;2#"3,4"\n', "#"),
        ("x.tsv", "a;b\n1:2;3,4\n", ";"),
    ],
)
def test_separators_of_cells(tmp_path, name, text, delimiter):
    (record,) = read_records(write(tmp_path / name, text), (), delimiter)
    assert record == {"a": "1:2" if name == "x.tsv" else "1;2", "b": "3,4"}


def test_a_comma_in_the_first_line_separates(tmp_path):
    assert list(read_records(write(tmp_path / "x.csv", "a;b;c,d\n1;2;3,4\n"))) == [
        {"a;b;c": "1;2;3", "d": "4"}
    ]
