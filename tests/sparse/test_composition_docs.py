"""The commands of the pages on merging, interchange and fusion parse, and the Python runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import mttl
from helpers.command import ROOT, load_recipe, train
from helpers.fake_repositories import FakeRepositories
from helpers.gyms import TINY_LLAMA, write_config, write_gym

MERGE = load_recipe(ROOT / "scripts" / "merge_task.py")
PAGES = ("interchange", "fusion")
TEXTS = {page: (ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES}
COMMANDS = [
    line for text in TEXTS.values() for line in text.splitlines() if line.startswith("python ")
]


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    _, script, *words = shlex.split(command, comments=True)
    load_recipe(ROOT / script).parse(words)


def test_the_lines_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"), backbone=TINY_LLAMA)
    overrides = ("trainer.max_steps=1", "trainer.val_check_interval=1", "data.evaluate=[]")
    train(config, "crossfit", *overrides)
    blocks = re.findall(r"```python\n(.*?)```", TEXTS["interchange"], re.DOTALL)
    asking, folding, giving = (block.replace("verb_past", "reverse") for block in blocks)
    monkeypatch.chdir(tmp_path)
    assert MERGE.main(["runs/crossfit", "--task", "reverse", "--out", "models/reverse"]) == 0
    capsys.readouterr()
    exec(asking, {})
    answer = capsys.readouterr().out.strip()
    assert [answer] == mttl.load("runs/crossfit").predict("reverse", ["knit"])
    exec(folding, {})
    AutoModelForCausalLM.from_pretrained(tmp_path / "models" / "reverse")
    FakeRepositories.used(monkeypatch, tmp_path / "hub")
    found: dict[str, Any] = {}
    exec(giving, found)
    assert found["again"].tasks == found["run"].tasks
