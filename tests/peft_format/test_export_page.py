"""The Python of the page on exporting runs."""

import re
from typing import Any

from transformers import AutoModelForSeq2SeqLM

import mttl
from helpers.command import ROOT, train
from helpers.fake_repositories import FakeRepositories
from helpers.gyms import write_config, write_gym
from mttl.commands import merge_task as MERGE

PAGE = (ROOT / "docs" / "howto" / "export.md").read_text("utf-8")


def test_the_lines_of_the_page_run(tmp_path, monkeypatch, capsys) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    overrides = ("trainer.max_steps=1", "trainer.val_check_interval=1", "data.evaluate=[]")
    train(config, "crossfit", *overrides)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    asking, folding, giving = (block.replace("verb_past", "reverse") for block in blocks)
    monkeypatch.chdir(tmp_path)
    assert MERGE.main(["runs/crossfit", "--task", "reverse", "--out", "models/reverse"]) == 0
    capsys.readouterr()
    exec(asking, {})
    answer = capsys.readouterr().out.strip()
    assert [answer] == mttl.load("runs/crossfit").predict("reverse", ["knit"])
    exec(folding, {})
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "models" / "reverse")
    FakeRepositories.used(monkeypatch, tmp_path / "hub")
    found: dict[str, Any] = {}
    exec(giving, found)
    assert found["again"].tasks == found["run"].tasks
