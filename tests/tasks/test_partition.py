import json

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.partition import Partition, select_tasks


def read(folder, content):
    path = folder / "partition.json"
    path.write_text(json.dumps(content))
    return Partition.read(path)


def test_order_is_kept_and_lists_may_be_left_out(tmp_path):
    found = read(tmp_path, {"test": ["c"], "train": ["b", "a"]})
    assert found == Partition(train=("b", "a"), dev=(), test=("c",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": ["a"], "tset": []}, "unknown key 'tset'.* Did you mean 'test'"),
        ({"train": ["a", " "]}, r"train.1: \" \" must be a name"),
        ({"train": ["a", "b", "a"]}, r"names 'a' twice: train\[0\] and train\[2\]"),
        ({"train": ["a"], "test": ["b", "a"]}, r"'a' twice: train\[0\] and test\[1\]"),
        ({"train": [], "dev": ["a"]}, r"train: \[\] must have at least 1 item"),
        ({"dev": ["a"]}, "the key 'train' is missing"),
    ],
)
def test_mistakes(tmp_path, content, message):
    with pytest.raises(TaskError, match=message):
        read(tmp_path, content)


def test_tasks_are_selected_in_the_order_of_the_partition_or_it_says_why_not(make_gym):
    gym = make_gym({"a": 1, "mean": 1, "c": 1})
    assert select_tasks(["c", "a"], gym, skip_missing=False) == ["c", "a"]
    assert select_tasks(["c", "x", "a"], gym, skip_missing=True) == ["c", "a"]
    with pytest.raises(TaskError, match=r"a task in the folder '.*' has the reserved name 'mean'"):
        select_tasks(["a", "mean"], gym, skip_missing=False)
    with pytest.raises(TaskError, match=r"lacks 2 of .*Check data.dir"):
        select_tasks(["x", "y"], gym, skip_missing=True)
    wanted = ["a", *(f"absent_{i:02}" for i in range(12))]
    with pytest.raises(TaskError, match="lacks 12 of the partition's 13 tasks") as error:
        select_tasks(wanted, gym, skip_missing=False)
    message = str(error.value)
    assert "'absent_09' and 2 more" in message
    assert "absent_10" not in message
    assert "data.skip_missing=true" in message
