import json

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.partition import Partition, select_tasks


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "partition.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_order_is_kept(write):
    path = write({"test": ["c"], "train": ["b", "a"], "dev": []})
    assert Partition.read(path) == Partition(train=("b", "a"), dev=(), test=("c",))


def test_dev_and_test_may_be_left_out(write):
    assert Partition.read(write({"train": ["a"]})) == Partition(train=("a",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train": ["a"],}', "partition.json', line 1, column .*not valid JSON"),
        ('["a"]', r"it: \[\"a\"\] must be a mapping of settings"),
        ('{"train": ["a"], "train": ["b"]}', 'the key "train" is repeated'),
        ({"train": ["a"], "tset": []}, "unknown key 'tset'.* Did you mean 'test'"),
        ({"train": "a"}, 'train: "a" must be a list'),
        ({"train": ["a", 3]}, r"train.1: 3 must be text"),
        ({"train": ["a", " "]}, r"train.1: \" \" must be a name"),
        ({"train": [["a" * 99]]}, r"train.0: \[\"a+\.\.\. must be text"),
        ({"train": ["a", "b", "a"]}, r"names 'a' twice: train\[0\] and train\[2\]"),
        ({"train": ["a"], "test": ["b", "a"]}, r"'a' twice: train\[0\] and test\[1\]"),
        ({"train": [], "dev": ["a"]}, r"train: \[\] must have at least 1 item"),
        ({"dev": ["a"]}, "the key 'train' is missing"),
    ],
)
def test_mistakes(write, content, message):
    with pytest.raises(TaskError, match=message):
        Partition.read(write(content))


def test_a_missing_file(tmp_path):
    with pytest.raises(TaskError, match=r"'.*none.json' does not exist"):
        Partition.read(tmp_path / "none.json")


def test_an_unreadable_file(tmp_path):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="must be UTF-8 text"):
        Partition.read(tmp_path / "bad.json")
    with pytest.raises(TaskError, match="is a folder; it must be a file"):
        Partition.read(tmp_path)


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
