"""Dialogues as texts: how they are written, read back and shortened."""

from typing import Any

import pytest

from helpers.raw import write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.dialogue import Dialogue
from mttl.tasks.propose import propose
from mttl.tasks.task_file import parse_tasks

FILE = "tasks: {talk: {kind: dialogue, source: {train: t.jsonl}%s}}"
SAID = ["Hi.", "Hello,\n you?", "How tall?"]
TEXT = "knowledge: Tall it is.\nuser: Hi.\nassistant: Hello, you?\nuser: How tall?"


def record(**changes: Any) -> dict[str, Any]:
    return {"history": SAID, "knowledge": "Tall it is.", "response": "330 m", **changes}


def lines(*records: dict[str, Any], more: str = "") -> list[Any]:
    (task,) = parse_tasks(FILE % more, "f").values()
    return list(convert(task, "train", records))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"knowledge": ["Tall\n", "it is."]},
        {"history": [{"role": "user", "content": "Hi."}, *SAID[1:]]},
        {"history": [*SAID[:2], {"speaker": "user", "text": "How tall?"}], "label": "copied"},
    ],
)
def test_records_become_inputs_and_keep_their_columns(changes: dict[str, Any]) -> None:
    (line,) = lines(given := record(**changes))
    assert line == (TEXT, "330 m")
    assert line.columns == {name: given[name] for name in given if name != "response"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"knowledge": ""}, "'knowledge' is ''; it must be a text, or a list"),
        ({"knowledge": ["a", " "]}, r"'knowledge' is \['a', ' '\]"),
        ({"history": []}, r"'history' is \[\]; it must be a list of turns"),
        ({"history": ["a", " ", "b"]}, "'history' has the turn ' ' at place 2"),
        ({"history": [{"speaker": "bot", "text": "a"}]}, r"speaker \(user or assistant\)"),
        ({"history": [{"speaker": "assistant", "text": "a"}]}, "turns that ends with the user's"),
        ({"response": " "}, "the output is empty"),
    ],
)
def test_a_wrong_record_has_its_row(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"task 'talk', split 'train', row 2: .*{message}"):
        lines(record(), record(**changes))


def test_a_filter_selects_by_label() -> None:
    labelled = [record(label=label) for label in ("faithful", "hallucinated", "copied")]
    kept = lines(*labelled, more=', rows: "{label} is not hallucinated"')
    assert [line.columns["label"] for line in kept] == ["faithful", "copied"]


@pytest.mark.parametrize(
    ("text", "exchanges"),
    [
        (TEXT, ((("Hi.", "Hello, you?"),), "How tall?")),
        ("assistant: Hi.\nuser: a\nuser: b", ((("", "Hi."),), "a\nb")),
        ("How tall?", ((), "How tall?")),
        ("user: a\nassistant: b", ((), "user: a\nassistant: b")),
    ],
)
def test_turns_alternate_and_begin_with_the_user(text: str, exchanges: Any) -> None:
    assert Dialogue.parse(text).exchanges() == exchanges


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (len(TEXT), TEXT),
        (len(TEXT) - 1, "knowledge: Tall it is.\nassistant: Hello, you?\nuser: How tall?"),
        (50, "knowledge: Tall it is.\nuser: How tall?"),
        (34, "knowledge: Tall it\nuser: How tall?"),
        (13, "user: w tall?"),
        (2, "user: "),
    ],
)
def test_the_oldest_turns_are_cut_first(most: int, expected: str) -> None:
    short = Dialogue.parse(TEXT).shortened(lambda part: len(part.text) <= most)
    assert short.text == expected


def test_a_task_is_proposed_for_these_columns(tmp_path: Any) -> None:
    rows = [record(label="faithful", id=number) for number in range(10)]
    write_jsonl(tmp_path / "talk.jsonl", rows)
    (task,) = parse_tasks(text := propose(tmp_path), "f").values()
    assert (task.kind, task.k) == ("dialogue", 4)
    assert "10 rows; not used: id\n" in text
