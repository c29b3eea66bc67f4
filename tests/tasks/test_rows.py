from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mttl.io.errors import TaskError
from mttl.tasks.rows import Row, line_of, read_rows

PATH = Path("task_16_100_train.tsv")


def parse_rows(data, path, max_rows=None):
    with TemporaryDirectory() as folder:
        (Path(folder) / path).write_bytes(data)
        return read_rows(Path(folder) / path, max_rows)


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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; it must hold at least one line"),
        (b"a\tb\rc\td\r", "carriage returns alone"),
        (
            b"a\tb\nno answer\n",
            "train.tsv, line 2: no tab between input and output, got 'no answer'",
        ),
        (b"a\tb\n \r\n\tc\n", r"line 3: the input is empty"),
        (b"a\tb\t \tc\n", "line 1: output 2 of 3 is empty"),
        (b"a\tb\nc\td\xff\n", r"line 2: byte 4 \(0xff\) is not valid UTF-8"),
    ],
)
def test_malformed_files_are_errors_with_file_line_and_reason(data, message):
    with pytest.raises(TaskError, match=message) as error:
        parse_rows(data, PATH)
    assert PATH.name in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(TaskError, match=r"'.*none.tsv' does not exist"):
        read_rows(tmp_path / "none.tsv")


JSON = Path("task_16_100_train.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"is empty; it must hold at least one line '\{\"input"),
        ("a\tb", r"line 1, column 1: not valid JSON"),
        ('["a"]', r'line 1: .* is not a row; it must read \{"input": "..."'),
        ('{"input": "a", "outputs": ["b"], "more": 1}', "is not a row"),
        ('{"input": 3, "outputs": ["b"]}', "is not a row"),
        ('{"input": " ", "outputs": ["b"]}', "line 1: the input is empty"),
        ('{"input": "a", "input": "a", "outputs": ["b"]}', 'the key "input" is repeated'),
    ],
)
def test_malformed_json_lines(line, message):
    with pytest.raises(TaskError, match=message) as error:
        parse_rows(line.encode(), JSON)
    assert JSON.name in str(error.value)


# Field text as a gym may hold it: no separator inside, nothing strippable outside.
fields = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"])).filter(
    lambda text: text and text == text.strip() and not text.startswith("\ufeff")
)


@given(st.lists(st.tuples(fields, st.lists(fields, min_size=1, max_size=3)), min_size=1))
def test_what_is_written_is_read(rows):
    data = "".join(line_of(".tsv", source, outputs) for source, outputs in rows).encode()
    assert parse_rows(data, PATH) == [Row(source, tuple(outputs)) for source, outputs in rows]


any_text = st.text(st.characters(exclude_categories=["Cs"])).map(str.strip).filter(bool)


@given(st.lists(st.tuples(any_text, st.lists(any_text, min_size=1, max_size=3)), min_size=1))
def test_what_is_written_as_json_lines_is_read(rows):
    data = "".join(line_of(".jsonl", source, outputs) for source, outputs in rows).encode()
    assert parse_rows(data, JSON) == [Row(source, tuple(outputs)) for source, outputs in rows]
