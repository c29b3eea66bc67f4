"""The commands of docs/howto/build_a_library.md run as they stand on a few small adapters."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from helpers.command import ROOT
from mttl.__main__ import main
from mttl.assembly.model import load_run
from mttl.peft_format.peft_folder import write_peft
from mttl.runtime.command import run_command

TASKS = ("third_past", "noun_plural", "verb_gerund")
PATHS = ("encoder.block.0.layer.0.SelfAttention.q", "encoder.block.1.layer.0.SelfAttention.q")
SIZE = 160
SMALL = [
    *("data.partition=partition.json", "data.max_rows=16", "data.evaluate=[]"),
    *("trainer.max_steps=2", "data.validation=none", "trainer.accelerator=cpu"),
]
ADAPT = ["adapt.max_steps=2", "adapt.eval_every=2", "data.max_eval_rows=2"]
SHORTER = {"train": SMALL, "adapt": ["data.partition=partition.json", *ADAPT]}


def commands() -> list[list[str]]:
    page = (ROOT / "docs" / "howto" / "build_a_library.md").read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("mttl ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, task in enumerate(TASKS):
        rank, paths = number + 1, PATHS[: 1 + number % 2]
        tensors = {}
        for path in paths:
            tensors[f"{path}.lora_A.weight"] = torch.randn(rank, SIZE) / 16
            tensors[f"{path}.lora_B.weight"] = torch.randn(SIZE, rank) / 16
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
        base = {"base_model_name_or_path": "data/backbone", "target_modules": list(paths)}
        write_peft(tmp_path / "adapters" / task, settings | base, tensors)
    partition = {"train": list(TASKS), "dev": [], "test": ["verb_past"]}
    (tmp_path / "partition.json").write_text(json.dumps(partition))
    with (tmp_path / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["task", "input"], ["noun_plural", "cat"], ["third_past", "go"]]
        )
    return tmp_path


@pytest.mark.slow
def test_the_page_runs(here: Path) -> None:
    ran = commands()
    assert len(ran) >= 10
    for given in ran:
        small = SHORTER.get(given[0], [])
        words = [*given, "-k", *small] if small else given
        assert run_command(lambda: main(words)) == 0, given  # noqa: B023
    assert len((here / "answers.csv").read_text().splitlines()) == 3
    for name in ("clusters", "random"):
        with (here / f"{name}.csv").open(newline="") as file:
            assert sorted(row["task"] for row in csv.DictReader(file)) == sorted(TASKS)
    assert load_run(here / "runs" / "clustered").model.router.n_skills == 2
    assert sorted(path.name for path in (here / "copy" / "members").iterdir()) == ["verb_gerund"]
