"""Super-NaturalInstructions: small files in the layout of allenai/natural-instructions."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mttl.io.errors import TaskError
from mttl.tasks.building import sni
from mttl.tasks.building.collection import part

INSTANCES = [{"id": f"i-{n}", "input": f"word {n}", "output": ["yes", "Yes."]} for n in range(6)]
CONTENT = {
    "Contributors": ["A"],
    "Source": ["quoref"],
    "Categories": ["Question Answering", "Other"],
    "Definition": ["Say yes"],
    "Positive Examples": [{"input": "a", "output": "yes", "explanation": "Right."}],
    "Negative Examples": [],
    "Instances": INSTANCES,
}


def write(root: Path, content: Any = CONTENT, name: str = "task001_yes") -> Path:
    for path, text in {
        f"tasks/{name}.json": json.dumps(content),
        "splits/default/train_tasks.txt": f"{name}\n",
        "splits/default/test_tasks.txt": "task002_no\n",
        "tasks/task002_no.json": json.dumps({**CONTENT, "Definition": "Say no."}),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def test_tasks_have_the_side_of_the_default_split(tmp_path: Path) -> None:
    seen, unseen = sni.tasks(write(tmp_path))
    assert (seen.name, seen.side, seen.description) == ("task001_yes", "train", "Say yes")
    assert (unseen.name, unseen.side, unseen.description) == ("task002_no", "test", "Say no.")
    assert (seen.category, seen.metric, seen.k) == ("sni/Question Answering", "Rouge-L", 100)


@pytest.mark.parametrize(
    ("definition", "text", "expected"),
    [
        # `encode` of Tk-Instruct's collator (src/ni_collator.py), definition only.
        (
            "Say yes",
            " a b ",
            "Definition: Say yes.\n\nNow complete the following example -\nInput: a b.\nOutput: ",
        ),
        (
            "Is it?\n",
            "(so)",
            "Definition: Is it?\n\nNow complete the following example -\nInput: (so)\nOutput: ",
        ),
    ],
)
def test_prompts_are_those_of_tk_instruct(definition: str, text: str, expected: str) -> None:
    assert sni.prompt(definition, text) == expected


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(6500, (100, 100, 6300)), (200, (100, 50, 50)), (90, (45, 22, 23)), (1, (0, 0, 1))],
)
def test_the_first_hundred_are_for_testing(n: int, sizes: tuple[int, ...]) -> None:
    found = [list(part(range(n), split)) for split in ("test", "dev", "train")]
    assert tuple(map(len, found)) == sizes
    assert [*chain(*found)] == list(range(n))


def test_records_have_all_outputs_but_blank_ones(tmp_path: Path) -> None:
    blank = [{"input": "x", "output": ["no", " "]}, {"input": "y", "output": [""]}]
    root = write(tmp_path, {**CONTENT, "Instances": [*INSTANCES[:2], *blank]})
    task = sni.tasks(root)[0]
    (record,) = task.read("dev")
    assert record == {"input": sni.prompt("Say yes", "x"), "output": ["no"]}
    assert list(task.read("train")) == []
    assert [one["output"] for one in task.read("test")] == [["yes", "Yes."]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Definition": []}, r"task001_yes.json is not a task: IndexError"),
        (
            {"Instances": [{"input": "a", "output": "b"}]},
            r"task001_yes.json: instance 1 needs an 'input' and a list 'output'",
        ),
    ],
)
def test_wrong_files_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    root = write(tmp_path, {**CONTENT, **change})
    with pytest.raises(TaskError, match=message):
        list(sni.tasks(root)[0].read("train"))


def test_lists_of_tasks_are_checked(tmp_path: Path) -> None:
    file = write(tmp_path) / "splits/default/train_tasks.txt"
    file.write_text("../task001_yes\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"train_tasks.txt: '\.\./task001_yes' must be the name"):
        sni.tasks(tmp_path)
    file.write_text("task009_gone\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"task009_gone.json' does not exist"):
        sni.tasks(tmp_path)
