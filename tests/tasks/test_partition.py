import json

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.partition import load_partition, select_tasks


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "partition.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train": ["a"],}', "partition.json, line 1, column .*not valid JSON"),
        ('["a"]', r"holds \[\"a\"\]; a partition is an object with the lists train, dev, test"),
        ({"train": ["a"], "tset": []}, "unknown key 'tset'.* Did you mean 'test'"),
        ({"train": "a"}, "'train' is \"a\"; it must be a list of tasks"),
        ({"train": ["a", 3]}, r"train\[1\] is 3; it must be a name"),
        ({"train": ["a", "b", "a"]}, r"names the task 'a' twice: train\[0\] and train\[2\]"),
        ({"train": ["a"], "test": ["b", "a"]}, r"'a' twice: train\[0\] and test\[1\]"),
        ({"train": [], "dev": ["a"]}, "trains no task: its list 'train' is empty or absent"),
    ],
)
def test_mistakes(write, content, message):
    with pytest.raises(TaskError, match=message):
        load_partition(write(content))


def test_an_unreadable_file(tmp_path):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="must be UTF-8 text"):
        load_partition(tmp_path / "bad.json")
    with pytest.raises(TaskError, match="is a folder; it must be a file"):
        load_partition(tmp_path)


def test_select_keeps_the_order_of_the_partition(make_gym):
    gym = make_gym({"a": 1, "b": 1, "c": 1})
    assert select_tasks(["c", "a"], gym, skip_missing=False) == ["c", "a"]
    assert select_tasks(["c", "x", "a"], gym, skip_missing=True) == ["c", "a"]
    assert select_tasks([], gym, skip_missing=False) == []


def test_a_task_that_tables_would_take_for_the_mean_is_refused(make_gym):
    with pytest.raises(TaskError, match="is called 'mean', as tables call the mean over tasks"):
        select_tasks(["a", "mean"], make_gym({"a": 1, "mean": 1}), skip_missing=False)


def test_absent_tasks_are_listed_with_the_way_out(make_gym):
    gym = make_gym({"a": 1})
    wanted = ["a", *(f"absent_{i:02}" for i in range(12))]
    with pytest.raises(TaskError, match="lacks 12 of the partition's 13 tasks") as error:
        select_tasks(wanted, gym, skip_missing=False)
    message = str(error.value)
    assert "'absent_09' and 2 more" in message
    assert "absent_10" not in message
    assert "data.skip_missing=true" in message


def test_skipping_never_leaves_nothing(make_gym):
    with pytest.raises(TaskError, match=r"lacks 2 of .*none would be left"):
        select_tasks(["x", "y"], make_gym({"a": 1}), skip_missing=True)
