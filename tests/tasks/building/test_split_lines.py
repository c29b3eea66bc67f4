import numpy as np
import pytest

from helpers.raw import copying_task, make_task, rows, write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.building.record_files import JsonLines
from mttl.tasks.building.split_lines import ConvertedWhenAsked, Stored, make_lines
from mttl.tasks.convert import convert
from mttl.tasks.rows import line_of

ORDER = np.array([5, 0, 2990, 17, 17])


@pytest.fixture
def records(tmp_path):
    return JsonLines(write_jsonl(tmp_path / "x.jsonl.gz", rows(3000)))


PREPARED = {"prepare": "stars", "output": "{stars}", "labels": ()}


@pytest.mark.parametrize(
    "task",
    [
        make_task(),
        copying_task(),
        make_task(labels=(), output="{label}"),
        make_task(rows="{text} is not text 0 or text 17"),
        copying_task(rows="{text} is not text 0"),
        make_task(**PREPARED),
        make_task(**PREPARED, rows="{text} is not text 1"),
    ],
)
def test_both_kinds_give_the_same(task, records, tmp_path):
    """They are what `convert` gives for all records at once."""
    expected = list(convert(task, "train", records))
    stored, asked = (
        Stored(task, "train", records, tmp_path),
        ConvertedWhenAsked(task, "train", records),
    )
    for lines in (stored, asked):
        assert len(lines) == len(expected)
        assert lines.take(ORDER) == [
            line_of(".jsonl", expected[i][0], expected[i][1:]).encode() for i in ORDER
        ]
    if task.kind == "classification":
        everything = np.arange(len(expected))
        for lines in (stored, asked):
            labels = lines.labels(everything)
            assert len(set(zip(labels.tolist(), (line[1] for line in expected), strict=True))) == 3
            if task.labels:
                assert labels.tolist() == [task.labels.index(line[1]) for line in expected]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl.gz"]


def test_records_that_depend_on_others_are_all_converted(tmp_path):
    pairs = [{"sentence_good": "a", "sentence_bad": "b"}] * 9
    task = make_task(prepare="blimp_pair", output="{good}", labels=(), input="{first}")
    records = JsonLines(write_jsonl(tmp_path / "x.jsonl", pairs))
    assert type(make_lines(task, "train", records, convert_all=0)) is Stored


@pytest.mark.parametrize("kind", [Stored, ConvertedWhenAsked])
def test_rows_that_a_task_leaves_out(records, kind):
    lines = kind(make_task(rows="{label} is not 0"), "train", records)
    assert len(lines) == 2000
    assert lines.take(np.array([0])) == [b'{"input": "text: text 1", "outputs": ["green"]}\n']
    assert lines.labels(np.array([0, 1, 2])).tolist() == [1, 2, 1]


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
