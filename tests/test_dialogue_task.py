"""A dialogue task from its file to answers, with an encoder–decoder and with a chat model."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.dialogues import train_dialogues
from helpers.raw import write_jsonl
from mttl.commands import adapt, predict
from mttl.config.data_schema import Data
from mttl.data.data_module import TextToTextDataModule
from mttl.inference.task_options import task_options
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only
from mttl.serving.protocol import ChatRequest, parse_request
from mttl.serving.served_task import ServedTask, conversation
from mttl.tasks.folder import Gym

TASKS = """
kind: dialogue
k: 4
tasks:
  guide: {source: {train: talk.jsonl}, metric: knowledge_f1}
  other: {source: {train: talk.jsonl}, side: test}
"""
SAID = ["Hi.", "Hello.", "How tall is it?"]


def record(number: int) -> dict[str, Any]:
    knowledge = [f"Tower {number}", f"is {number} m tall."]
    return {"history": SAID, "knowledge": knowledge, "response": f"{number} m", "label": "faithful"}


ADAPTED = {**record(8), "task": "other"}


@pytest.fixture(params=["t5", "chat"])
def run(request: Any, tmp_path: Path) -> Any:
    data = {"max_input_length": 200, "validation": "dev", "prefix": "none", "batch_size": 4}
    data |= {"system": "Be brief."} if request.param == "chat" else {}
    return train_dialogues(tmp_path, TASKS, map(record, range(20)), request.param, steps=2, **data)


def test_from_a_task_file_to_answers(run: Any, tmp_path: Path) -> None:
    chat = is_decoder_only(run.model.backbone)
    (folder,) = tmp_path.glob("runs/.cache/tasks-*[!k]")
    gym = Gym(folder)
    rows = gym.rows("guide", "test", 100)
    for row in rows:  # as metrics receive them
        number = int(row.outputs[0].split()[0])
        wanted = record(number)
        del wanted["response"]
        assert row.source["columns"] == wanted

    # Prompts are those of the messages, the same from texts, records and requests.
    given = record(7)
    text = "knowledge: Tower 7 is 7 m tall.\nuser: Hi.\nassistant: Hello.\nuser: How tall is it?"
    turns = zip(("user", "assistant", "user"), SAID, strict=True)
    messages = [{"role": role, "content": said} for role, said in turns]
    messages.insert(0, {"role": "system", "content": "Tower 7 is 7 m tall."})
    asked = parse_request(ChatRequest, {"model": "guide", "messages": messages})
    question, prefix = conversation(asked.messages, run.form, "guide")
    assert question == text
    served = ServedTask("guide", run, 8, truncate=False)
    (ids,), _ = served.encode([question], prefix)
    expected = text
    if chat:
        messages[0]["content"] = "Be brief.\n\nTower 7 is 7 m tall."
        expected = run.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    assert run.tokenizer.decode(ids, skip_special_tokens=not chat) == expected
    (answer,) = run.predict("guide", [text])
    assert answer
    assert run.predict("guide", [given]) == [answer]
    assert run.pipeline("guide")(given) == answer
    with pytest.raises(TypeError, match=r"must be a list of texts or records; write \[{'history'"):
        run.predict("guide", given)
    with pytest.raises(TaskError, match="the model has no task 'guidd'"):
        run.predict("guidd", [given])
    # Few answers with several rows each are no options here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mttl.inference.task_options.ROWS_EACH", 0)
        assert task_options(gym, "guide", [100]) == []

    # Training reads the same prompts; long ones lose their oldest turns.
    rows_config = Data(dir=str(folder), samples=[100])
    for most, n_shown in ((200, 3), (80 if chat else 60, 1)):
        form = run.form.model_copy(update={"max_input_length": most, "task_templates": {}})
        given = (gym, ["guide"], run.tokenizer, rows_config)
        data = TextToTextDataModule(*given, decoder_only=chat, form=form)
        for row in data.train_rows:
            prompt = run.tokenizer.decode(row["input_ids"])
            assert len(row["input_ids"]) <= most
            assert " ".join(json.loads(row["columns"])["knowledge"]) in prompt
            assert [said in prompt for said in SAID] == [n_shown == 3, n_shown == 3, True]

    # Another dialogue is adapted to, and tables of records are answered.
    source, new = str(tmp_path / "runs" / "talk"), tmp_path / "new"
    steps = ("adapt.max_steps=1", "adapt.eval_every=1", "adapt.batch_size=2")
    given = ["-c", str(tmp_path / "tiny.yaml"), "--from", source, "--out", str(new), "--save"]
    assert adapt.main([*given, "-k", *steps]) == 0
    (kept,) = (new / "models").iterdir()
    table = write_jsonl(tmp_path / "in.jsonl", [{**record(7), "task": "guide"}, ADAPTED])
    given = ["--from", source, "--adapted", str(kept), "--in", str(table)]
    assert predict.main([*given, "--out", str(tmp_path / "out.jsonl")]) == 0
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["prediction"] == answer
    assert second["knowledge"] == ADAPTED["knowledge"]
    assert "prediction" in second
    write_jsonl(table, [ADAPTED, {"history": SAID, "task": "guide"}])
    with pytest.raises(TaskError, match=r"row 2: the field 'knowledge' is missing"):
        predict.main([*given, "--out", str(tmp_path / "other.jsonl")])
