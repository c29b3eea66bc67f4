import numpy as np
import pytest

from helpers.raw import copying_task, make_task, rows, write_jsonl
from mttl.data.lines import ConvertedWhenAsked, Stored, make_lines
from mttl.data.record_files import JsonLines
from mttl.errors import TaskError
from mttl.tasks.convert import convert

ORDER = np.array([5, 0, 2999, 17, 17])


@pytest.fixture
def records(tmp_path):
    return JsonLines(write_jsonl(tmp_path / "x.jsonl.gz", rows(3000)))


@pytest.mark.parametrize(
    "task", [make_task(), copying_task(), make_task(labels=(), output="{label}")]
)
def test_both_kinds_give_the_same(task, records, tmp_path):
    """They are what `convert` gives for all records at once."""
    expected = list(convert(task, "train", records))
    stored, asked = (
        Stored(task, "train", records, tmp_path),
        ConvertedWhenAsked(task, "train", records),
    )
    for lines in (stored, asked):
        assert len(lines) == 3000
        assert lines.take(ORDER) == ["\t".join(expected[i]).encode() + b"\n" for i in ORDER]
    if task.kind == "classification":
        everything = np.arange(3000)
        for lines in (stored, asked):
            labels = lines.labels(everything)
            assert len(set(zip(labels.tolist(), (line[1] for line in expected), strict=True))) == 3
            if task.labels:
                assert labels.tolist() == [task.labels.index(line[1]) for line in expected]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl.gz"]


def test_only_large_sources_of_plain_tasks_are_converted_when_asked(records):
    def kind(task, **options):
        return type(make_lines(task, "train", records, **options))

    assert kind(make_task(), convert_all=2999) is ConvertedWhenAsked
    assert kind(make_task(), convert_all=3000) is Stored
    assert kind(make_task()) is Stored
    assert kind(make_task(rows="{label} is not 7"), convert_all=0) is Stored
    assert kind(make_task(prepare="stars"), convert_all=0) is Stored


def test_rows_that_a_task_leaves_out(records, tmp_path):
    lines = Stored(make_task(rows="{label} is not 0"), "train", records)
    assert len(lines) == 2000
    assert lines.take(np.array([0])) == [b"text: text 1\tgreen\n"]


@pytest.mark.parametrize("convert_all", [0, 10**6])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"label": 0}, "'text'"),
        ({"text": "x", "label": 3}, "3"),
        ({"text": ["x"], "label": 1}, "text"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, bad, message, convert_all):
    """By its file and its row in the file, whether records are read in order or not."""
    path = write_jsonl(tmp_path / "x.jsonl", [*rows(1200), bad, *rows(50)])
    with pytest.raises(TaskError, match=rf"x\.jsonl.*row 1201.*{message}"):
        make_lines(make_task(), "train", JsonLines(path), convert_all=convert_all).labels(
            np.array([1230, 1200, 3])
        )


@pytest.mark.parametrize("convert_all", [0, 10**6])
def test_half_a_character(tmp_path, convert_all):
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "before \ud83d after"}] * 3)
    with pytest.raises(TaskError, match=r"'copying', split 'train': half a character .*before"):
        make_lines(copying_task(), "train", JsonLines(path), convert_all=convert_all).take(
            np.array([0])
        )
