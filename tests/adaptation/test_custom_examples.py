"""Pairs of texts become a task of a gym."""

import re
from pathlib import Path

import pytest

from mttl.adaptation.custom_examples import split_examples, write_examples
from mttl.io.errors import TaskError

PAIRS = [("a", "1"), ("b", "2"), ("c", "3")]


def test_every_second_example_is_kept_unless_others_are_given() -> None:
    assert split_examples(PAIRS) == ([PAIRS[0], PAIRS[2]], [PAIRS[1]])
    assert split_examples(PAIRS, PAIRS[:1]) == (PAIRS, PAIRS[:1])


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    gym = write_examples(
        tmp_path, "new-task_1.5", PAIRS, PAIRS[:1], metric="ACC", description='a "quoted", one'
    )
    assert gym.tasks() == ["new-task_1.5"]
    assert gym.metric("new-task_1.5") == "ACC"
    assert gym.description("new-task_1.5") == 'a "quoted", one'
    rows = {split: gym.rows("new-task_1.5", split, 0) for split in ("train", "dev")}
    assert [(row.input, *row.outputs) for row in rows["train"]] == PAIRS
    assert len(rows["dev"]) == 1


def test_texts_of_several_lines_are_written_as_they_are(tmp_path: Path) -> None:
    pairs = [("def f():\n\treturn 1", '{\n  "a": "b\\n"\n}'), ("x\r\ny", "é")]
    gym = write_examples(tmp_path, "code", pairs, pairs[:1])
    assert [(row.input, *row.outputs) for row in gym.rows("code", "train", 0)] == pairs


@pytest.mark.parametrize(
    ("examples", "dev", "message"),
    [
        ([], None, "examples holds 0 pairs; there must be some"),
        (PAIRS, [], "examples holds 3 pairs; there must be some"),
        (["ab", "cd"], None, "examples[0] is 'ab'; it must be a pair of texts"),
        ([*PAIRS, ("a", "b", "c")], None, "examples[3] is ('a', 'b', 'c'); it must be a pair"),
        ([*PAIRS, ("a", 3)], None, "examples[3] is ('a', 3); it must be a pair"),
        (PAIRS, [("a", " ")], "dev[0] has an empty output"),
    ],
)
def test_mistakes_are_answered(examples: list, dev: list | None, message: str) -> None:
    with pytest.raises(TaskError, match=re.escape(message)):
        split_examples(examples, dev)


def test_names_and_metrics_are_checked(tmp_path: Path) -> None:
    for task in ("../up", "", "a b", ".hidden"):
        with pytest.raises(TaskError, match="must be a name of letters"):
            write_examples(tmp_path, task, PAIRS, PAIRS)
    with pytest.raises(TaskError, match="Did you mean 'Rouge-L'"):
        write_examples(tmp_path, "new", PAIRS, PAIRS, metric="rouge-l")
    assert not list(tmp_path.iterdir())
