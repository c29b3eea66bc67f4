"""The commands of the pages on merging, interchange and fusion parse, and the Python runs."""

import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM

from helpers.command import ROOT, load_recipe, train
from helpers.gyms import write_config, write_gym

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


def test_a_task_is_merged_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    overrides = ("trainer.max_steps=1", "trainer.val_check_interval=1", "data.evaluate=[]")
    train(config, "crossfit", *overrides)
    (block,) = re.findall(r"```python\n(.*?)```", TEXTS["interchange"], re.DOTALL)
    assert "verb_past" in block
    monkeypatch.chdir(tmp_path)
    exec(block.replace("verb_past", "reverse"), {})
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "models" / "reverse")
