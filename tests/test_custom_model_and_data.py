"""The tutorial on custom tasks with two kinds of custom model, served, and exported to PEFT."""

import json
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import ByT5Tokenizer

from helpers.command import ROOT
from helpers.gyms import TINY_LLAMA, TINY_T5
from helpers.raw import write_jsonl
from helpers.serving import serving
from mttl.__main__ import main
from mttl.assembly.load_tasks import load_tasks
from mttl.commands import serve as SERVE
from mttl.models.backbone import build_random, is_decoder_only, scale_initial_weights
from mttl.runtime.command import run_command
from mttl.tasks.folder import Gym

PAGE = (ROOT / "docs" / "tutorials" / "custom_tasks.md").read_text(encoding="utf-8")
(TASKS,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(PYTHON,) = re.findall(r"```python\n(import openai\n.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.split(" >")[0].split()[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in re.sub(r"\\\n *", "", block).splitlines()
    if line.startswith("mttl ")
]
SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2", "data.max_eval_rows=2"]
SHORT += ["data.batch_size=8", "skills.rank=2", "data.validation=none"]
MODEL = ["backbone.name=models/base", "data.max_input_length=96"]
SHORT_ADAPTATION = ["adapt.max_steps=2", "adapt.batch_size=8", "data.max_eval_rows=2"]


def record(number: int) -> dict[str, str]:
    """A message with tabs and line breaks, as has its name; one of 77 topics."""
    return {
        "message": f"def f{number}(x):\n\tif x:\n\t\treturn {number}\n\treturn",
        "name": f"\treturn {number}\n\telse:\n\t\tpass\t# so",
        "topic": f"topic {number % 77}",
        "urgent": ["no", "yes"][number % 2],
    }


@pytest.fixture(params=["llama", "t5"])
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files and the model folder of the page."""
    write_jsonl(tmp_path / "calls.jsonl", [record(number) for number in range(80)])
    write_jsonl(tmp_path / "calls_test.jsonl", [record(number) for number in range(80, 84)])
    (tmp_path / "mine.yaml").write_text(TASKS, encoding="utf-8")
    sizes = {"t5": TINY_T5, "llama": TINY_LLAMA}[request.param]["config"]
    model = build_random(request.param, sizes)
    scale_initial_weights(model, {"*": 3.0})  # answers depend on the question
    model.save_pretrained(tmp_path / "models" / "base")
    ByT5Tokenizer().save_pretrained(tmp_path / "models" / "base")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], *more: str) -> None:
    assert run_command(lambda: main([*words, *more])) == 0


@pytest.mark.slow
def test_from_raw_files_to_a_served_answer_and_to_peft(place: Path) -> None:
    train, adapt, predict, serve, export = COMMANDS
    run(train, "-k", *MODEL, *SHORT)
    (folder,) = place.glob("runs/.cache/tasks-*[!k]")
    gym = Gym(folder)
    topics = {row.outputs[0] for row in gym.rows("topic", "train", 100)}
    assert len(topics) > 20
    names = {record(number)["message"]: record(number)["name"].strip() for number in range(80)}
    assert all(names[row.input] == row.outputs[0] for row in gym.rows("name", "train", 100))
    run(adapt, "-k", *SHORT_ADAPTATION)
    refund = "gina: call me now about the refund"
    asked = [("urgent", refund), ("name", record(3)["message"]), ("topic", "m 5\tplease")]
    questions = [{"task": task, "input": text} for task, text in asked * 3]
    write_jsonl(place / "questions.jsonl", questions)
    run(predict)
    lines = (place / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line)["prediction"] for line in lines]
    assert len(set(answers)) > 1

    options = SERVE.main.parse(serve[1:])
    models, _ = load_tasks(options.source, options.adapted, options.backbone)
    with serving(models) as served:
        scope: dict[str, Any] = {}
        exec(PYTHON.replace("http://127.0.0.1:8000", served.address), scope)
        assert scope["reply"].choices[0].text == answers[0]
        client = scope["client"]
        for (task, text), answer in zip(asked, answers, strict=False):
            reply = client.completions.create(model=task, prompt=text)
            assert reply.choices[0].text == answer

    run(export)
    urgent = models["urgent"]
    decoder_only = is_decoder_only(urgent.model.backbone)
    kind = peft.AutoPeftModelForCausalLM if decoder_only else peft.AutoPeftModelForSeq2SeqLM
    adapter = kind.from_pretrained(place / "adapters" / "urgent").eval()
    encoder = urgent.form.encoder(urgent.tokenizer, decoder_only=decoder_only)
    ids = torch.tensor(encoder.prompts([urgent.form.text(*asked[0])]))
    with torch.no_grad():
        found = adapter.generate(input_ids=ids, **urgent.search)[0]
    found = found[ids.shape[1] :] if decoder_only else found
    assert urgent.tokenizer.decode(found, skip_special_tokens=True).strip() == answers[0]
