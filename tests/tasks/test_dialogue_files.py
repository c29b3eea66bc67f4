"""Published dialogues: small files in the layouts that the readers name."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from helpers.raw import write_jsonl
from mttl.io.errors import TaskError
from mttl.tasks.dialogue_files import read_dstc, read_faithdial, read_wizard
from mttl.tasks.rows import record_files
from mttl.tasks.sample_files import write_samples
from mttl.tasks.task_file import load_tasks


def wizard(text: str, checked: dict[str, str]) -> dict[str, Any]:
    passages = {"checked_passage": {}, "retrieved_passages": [], "retrieved_topics": []}
    return {"speaker": "0_Wizard", "text": text, "checked_sentence": checked, **passages}


WIZARD = [
    {
        "chosen_topic": "Cheese",
        "persona": "i like cheese.",
        "wizard_eval": 5,
        "dialog": [
            wizard("Cheese is old.", {"self_Cheese_0": "Cheese predates history."}),
            {"speaker": "1_Apprentice", "text": "How old?"},
            wizard("Who knows.", {"no_passages_used": "no_passages_used"}),
            {"speaker": "1_Apprentice", "text": "You?"},
            wizard("8000 years.", {"partner_Cheese_1": "It is 8,000 years old."}),
        ],
    },
    {
        "chosen_topic": "Blue",
        "dialog": [{"speaker": "0_Apprentice", "text": "Hi"}, wizard("Hello", {})],
    },
]
UTTERANCE = {
    "history": ["Been to a concert?", "No, a bot.", "Tell me more?"],
    "speaker": "Wizard",
    "knowledge": "It began on September 9, 2015.",
    "original_response": "I was there in 2015.",
    "response": "It began in September 2015.",
    "BEGIN": ["Hallucination", "Entailment"],
    "VRM": ["Disclosure"],
}
FAITHFUL = {**UTTERANCE, "original_response": None, "BEGIN": ["Entailment"]}
FIXED = {**UTTERANCE, "original_response": "it began in 2015", "BEGIN": ["Entailment"]}
FAITHDIAL = [{"dialog_idx": 0, "utterances": [UTTERANCE, FAITHFUL, FIXED]}]
LOGS = [
    [{"speaker": "U", "text": "A room?"}],
    [
        {"speaker": "U", "text": "A room?"},
        {"speaker": "S", "text": "Acorn?"},
        {"speaker": "U", "text": "Pets?"},
    ],
]
DSTC9 = {
    "hotel": {
        "1": {"name": "ACORN", "docs": {"0": {"title": "Pets?", "body": "None."}}},
        "*": {"name": None, "docs": {"4": {"title": "Cards?", "body": "All."}}},
    }
}
KEYS9 = [{"domain": "hotel", "entity_id": "*", "doc_id": 4}]
KEYS9 += [{"domain": "hotel", "entity_id": 1, "doc_id": 0}]
SENTENCES = {"sentences": {"2": "Loved the pool."}, "traveler_type": "Couples"}
DSTC11 = {
    "hotel": {
        "1": {
            "name": "ACORN",
            "reviews": {"7": SENTENCES},
            "faqs": {"0": {"question": "Pets?", "answer": "None."}},
        }
    }
}
KEYS11 = [{"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": 7, "sent_id": 2}]
KEYS11 += [{"domain": "hotel", "entity_id": 1, "doc_type": "faq", "doc_id": 0}]


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def dstc(root: Path, known: Any = DSTC9, keys: Any = KEYS9, logs: Any = LOGS, **label: Any) -> Path:
    labelled = {"target": True, "knowledge": keys, "response": "No pets.", **label}
    write(root / "train" / "labels.json", [{"target": False}, labelled])
    write(root / "knowledge.json", known)
    return write(root / "train" / "logs.json", logs)


def test_wizard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, last = read_wizard(path := write(tmp_path / "train.json", WIZARD))
    topic = {"speaker": "user", "text": "Cheese"}
    knowledge = "Cheese predates history."
    assert first == {"history": [topic], "knowledge": knowledge, "response": "Cheese is old."}
    texts = ["Cheese", "Cheese is old.", "How old?", "Who knows.", "You?"]
    assert [turn["text"] for turn in last["history"]] == texts
    assert [turn["speaker"] for turn in last["history"]] == ["user", "assistant"] * 2 + ["user"]
    assert f"'{path}': skipped 2 of 4, responses without a checked sentence" in caplog.text


def test_faithdial(tmp_path: Path) -> None:
    found = list(read_faithdial(write(tmp_path / "train.json", FAITHDIAL)))
    expected = [("faithful", UTTERANCE["response"]), ("hallucinated", "I was there in 2015.")]
    expected += [("faithful", UTTERANCE["response"])] * 2
    assert [(row["label"], row["response"]) for row in found] == expected
    assert all(row["VRM"] == ["Disclosure"] for row in found)
    audit = tmp_path / "wow.csv"
    audit.write_text(
        "evidence,history,response,BEGIN,VRM\n"
        'Lawyers work.,oh?,They do,Entailment,Edification\n"a, b",c,d,Generic,Question\n'
        'e,f,g,Partial Hallucination,"Disclosure,Ack."\nh,i,j,Uncooperative,Edification\n'
    )
    rows = list(read_faithdial(audit))
    labels = ["faithful", "generic", "hallucinated", "uncooperative"]
    assert [row["label"] for row in rows] == labels
    assert (rows[1]["knowledge"], rows[1]["history"], rows[1]["response"]) == ("a, b", "c", "d")


@pytest.mark.parametrize(
    ("known", "keys", "knowledge"),
    [
        (DSTC9, KEYS9, ["Cards? All.", "ACORN: Pets? None."]),
        (DSTC11, KEYS11, ["ACORN: Loved the pool.", "ACORN: Pets? None."]),
    ],
)
def test_dstc(tmp_path: Path, caplog: Any, known: Any, keys: Any, knowledge: list[str]) -> None:
    caplog.set_level(logging.INFO)
    (found,) = read_dstc(path := dstc(tmp_path, known, keys))
    roles = [("user", "A room?"), ("assistant", "Acorn?"), ("user", "Pets?")]
    assert [(turn["speaker"], turn["text"]) for turn in found["history"]] == roles
    assert (found["knowledge"], found["response"]) == (knowledge, "No pets.")
    assert f"'{path}': skipped 1 of 2, turns that need no knowledge" in caplog.text
    names = ["logs.json", "labels.json", "knowledge.json"]
    assert [file.name for file in record_files(path)] == names


def changed(keys: list[dict[str, Any]], **key: Any) -> list[dict[str, Any]]:
    return [{**keys[0], **key}]


WRONG_DSTC = [
    ({"keys": changed(KEYS9, doc_id=9)}, r"labels.json, record 2: knowledge.json: has no '9'"),
    ({"keys": changed(KEYS9, entity_id=9)}, "labels.json, record 2: knowledge.json: has no '9'"),
    ({"logs": LOGS[:1]}, "logs.json' has 1 dialogues, but .*labels.json' 2 labels"),
    ({"logs": [[], [{"speaker": "B", "text": "a"}]]}, r"record 2: it is malformed \(KeyError\('B'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_DSTC)
def test_wrong_files_of_dstc(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        list(read_dstc(dstc(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_wizard, [{"dialog": [{"speaker": "0_Bot", "text": "a"}]}], "dialogue 1: .*'Bot'"),
        (read_wizard, [{"dialog": None}], "dialogue 1: it is malformed"),
        (read_wizard, {}, "has one object per line, but the format is one list of dialogues"),
        (read_faithdial, [{"utterances": [{**UTTERANCE, "BEGIN": ["x"]}]}], "1: 'BEGIN' is"),
    ],
)
def test_wrong_files(tmp_path: Path, read: Any, content: Any, message: str) -> None:
    with pytest.raises(TaskError, match=f"train.json.*{message}"):
        list(read(write(tmp_path / "train.json", content)))


def test_templates_refuse_empty_texts(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [{"utterances": [{**UTTERANCE, "knowledge": ""}]}])
    file = "source: {train: train.json, format: faithdial}"
    (tmp_path / "tasks.yaml").write_text(f"tasks: {{new: {{kind: dialogue, k: 1, {file}}}}}")
    (task,) = load_tasks(tmp_path / "tasks.yaml").values()
    with pytest.raises(TaskError, match="row 1: the field 'knowledge' is ''; it must be a text"):
        write_samples(task, tmp_path, [100])


def test_lines_of_records_are_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [UTTERANCE, UTTERANCE])
    with pytest.raises(TaskError, match="remove 'format' if a line is a record"):
        list(read_faithdial(path))


def test_faithful_responses_are_the_default_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [{"utterances": [UTTERANCE] * 5}])
    tasks = "tasks: {faithful: {kind: dialogue, k: 1, source: &s {train: train.json, format: "
    tasks += 'faithdial}}, other: {kind: dialogue, k: 1, source: *s, rows: "{label} is '
    (tmp_path / "tasks.yaml").write_text(f'{tasks}hallucinated"}}}}')
    responses = {"faithful": UTTERANCE["response"], "other": UTTERANCE["original_response"]}
    for name, task in load_tasks(tmp_path / "tasks.yaml").items():
        (tmp_path / name).mkdir()
        write_samples(task, tmp_path / name, [100])
        (file,) = (tmp_path / name).glob("*_train.jsonl")
        assert json.loads(file.read_text())["outputs"] == [responses[name]]
