"""Codes from a task file to answers in Python, of a table and of the server."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from helpers.dialogues import train_dialogues
from helpers.raw import write_jsonl
from helpers.serving import serving
from mttl.commands import merge_task, predict
from mttl.config.data_schema import Data
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only
from mttl.tasks.folder import Gym

TASKS = """
kind: dialogue
k: 6
tasks:
  guide: {source: {train: talk.jsonl}, metric: knowledge_f1, control: {knowledge_f1: 3}}
"""
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def record(number: int) -> dict[str, Any]:
    answer = " ".join(WORDS[: 1 + number % 10])
    return {"history": f"Count to {number}.", "knowledge": " ".join(WORDS), "response": answer}


@pytest.fixture(params=["t5", "chat"])
def run(request: Any, tmp_path: Path) -> Any:
    data = {"max_input_length": 150, "validation": "none", "batch_size": 4, "evaluate": ["dev"]}
    records = map(record, range(30))
    return train_dialogues(tmp_path, TASKS, records, request.param, scale=1.5, **data)


def test_codes_from_a_task_file_to_answers(run: Any, tmp_path: Path) -> None:
    # Inputs of training rows have the codes of these rows, also if they are cut.
    (folder,) = tmp_path.glob("runs/.cache/tasks-*[!k]")
    gym, chat = Gym(folder), is_decoder_only(run.model.backbone)
    rows = gym.rows("guide", "train", 100)
    codes = [row.columns["control"]["knowledge_f1"] for row in rows]
    assert {*codes} == {1, 2, 3}
    for most in (150, 90 if chat else 50):
        section = Data(dir=str(folder), samples=[100], max_input_length=most)
        form = run.form.model_copy(update={"max_input_length": most, "task_templates": {}})
        given = (gym, ["guide"], run.tokenizer, section)
        data = TextToTextDataModule(*given, decoder_only=chat, form=form)
        trained: Any = data.train_rows
        tested: Any = data.prepared("test")
        for code, own in zip(codes, trained, strict=True):
            assert f"[guide] [knowledge_f1 {code}] " in run.tokenizer.decode(own["input_ids"])
            assert len(own["input_ids"]) <= most
        for own in tested:
            assert "[guide] [knowledge_f1 3] " in run.tokenizer.decode(own["input_ids"])
    with pytest.raises(TaskError, match=r"'train\+dev' would train 'guide' on development rows w"):
        data._prepared("train+dev", None)

    # Another code gives other prompts and answers; the default is the highest code.
    asked = [{k: v for k, v in record(n).items() if k != "response"} for n in range(8)]
    texts = [run.form.filled("guide", one, "row") for one in asked]
    low, high = {"knowledge_f1": 1}, {"knowledge_f1": 3}
    coded = [one | {"control": low} for one in asked]
    usual, other = run.predict("guide", asked), run.predict("guide", coded)
    assert usual != other or not chat  # the random T5 writes the same words
    assert run.predict("guide", texts) == usual == run.predict("guide", coded, control=high)
    assert run.predict("guide", texts, control=low) == other
    both = run.predict("guide", [texts[0]] * 2, control=[high, low])
    assert both == [usual[0], other[0]]
    text = texts[0]
    (chosen,) = run.choose("guide", [text], ["a", "b"], control=low)
    assert chosen.probabilities != run.choose("guide", [text], ["a", "b"])[0].probabilities
    with pytest.raises(TaskError, match=r"text 1: control .* may have knowledge_f1 from 1 to 3"):
        run.predict("guide", [asked[0] | {"control": {"knowledge_f1": 4}}])
    with pytest.raises(TaskError, match="there are 2 codes and 1 texts"):
        run.predict("guide", [text], control=[low, low])
    form = PromptForm()
    with pytest.raises(TaskError, match="may have nothing: the task has no codes"):
        form.prompt_prefix("guide", form.codes_in("guide", coded[0]))
    assert form.codes_in("guide", {"control": "a column of the user"}) is None

    # Tables and the server answer the same.
    source, out = str(tmp_path / "runs" / "talk"), tmp_path / "out.jsonl"
    table = write_jsonl(tmp_path / "in.jsonl", [*asked, *coded])
    assert predict.main(["--from", source, "--in", str(table), "--out", str(out)]) == 0
    found = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    assert found == [*usual, *other]
    exported = ["--from", source, "--task", "guide", "--out", str(tmp_path / "exported")]
    assert merge_task.main(exported) == 0
    card = (tmp_path / "exported" / "README.md").read_text("utf-8")
    assert "Prompts of `guide` have the codes `[knowledge_f1 3]`:" in card
    lines = ["input\tcontrol", f"x\t{json.dumps(low)}"]
    (tmp_path / "in.tsv").write_text("\n".join([*lines, "x\t[3]"]) + "\n")
    with pytest.raises(TaskError, match=r"in.tsv, row 2: control \(.*\) may have knowledge_f1 "):
        predict.main(["--from", source, "--in", str(tmp_path / "in.tsv")])
    with serving(run) as served, OpenAI(base_url=f"{served.address}/v1", api_key="-") as client:
        for control, expected in ((None, usual[0]), (low, other[0])):
            body = {"control": control} if control else None
            given = {"model": "guide", "extra_body": body, "temperature": 0}
            answer = client.completions.create(prompt=text, **given)
            assert answer.choices[0].text == expected
            messages: Any = [{"role": "user", "content": text}]
            answered = client.chat.completions.create(messages=messages, **given)
            assert answered.choices[0].message.content == expected
        with pytest.raises(BadRequestError, match="may have knowledge_f1 from 1 to 3: "):
            client.completions.create(model="guide", prompt=text, extra_body={"control": {"f": 1}})
