"""The example of docs/reference/task_files.md: five tasks, and a model trained on them."""

import csv
import json
import re
from pathlib import Path

import pytest

from helpers.command import ROOT
from helpers.gyms import TINY_T5
from helpers.raw import write_jsonl
from mttl.__main__ import main
from mttl.checkpoints.run_folder import RunFolder
from mttl.io import yaml12
from mttl.runtime.command import run_command
from mttl.tasks.folder import Gym

TEXT = (ROOT / "docs/reference/task_files.md").read_text(encoding="utf-8")
(TASKS,) = re.findall(r"```yaml\n(# my_tasks\.yaml\n.*?)```", TEXT, re.DOTALL)
(PYTHON,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line.split()[1:]
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]  # without the word mttl
N = 320


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder as the example has it: the sources, and the partitions that ship."""
    (tmp_path / "my_tasks.yaml").write_text(TASKS, encoding="utf-8")
    lines = [f"message {i}\t{i % 2}\t{('delivery', 'payment', '')[i % 3]}\n" for i in range(N)]
    (tmp_path / "messages.tsv").write_text("".join(lines))
    replies = [{"message": f"where is {i}?", "replies": ["here", "there"]} for i in range(N)]
    write_jsonl(tmp_path / "replies.jsonl.gz", replies)
    write_jsonl(tmp_path / "replies_test.jsonl", replies[:9])
    with (tmp_path / "steps.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["message", "first", "second", "third", "best"])
        table.writerows([f"so, {i}", "call", "write", "wait", 1 + i % 3] for i in range(N))
    # The hub's two sets, as records in a folder.
    phrases = [{"sentence": f"phrase {i} ", "label": i % 2} for i in range(N)]
    pairs = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(N)]
    for name, records in (("sst2__default", phrases), ("glue__rte", pairs)):
        write_jsonl(tmp_path / f"raw/{name}/train.jsonl.gz", records)
        write_jsonl(tmp_path / f"raw/{name}/validation.jsonl.gz", records[:9])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str]) -> int:
    return run_command(lambda: main(words))


def test_five_tasks_join_the_gym_and_are_trained_on(place, capsys):
    partition, own, status, train = COMMANDS
    assert run([*partition, "--raw", "raw", "--workers", "1"]) == 2  # 159 have no records here
    assert "159 unavailable, 1 differs" in capsys.readouterr().out
    assert run([*own, "--raw", "raw", "--workers", "1"]) == 0
    assert "5 built" in capsys.readouterr().out
    assert run(status) == 0
    assert "5 of 5 tasks are complete in data/crossfit" in capsys.readouterr().out

    gym = Gym(place / "data/crossfit")
    names = ["complaint", "topic", "reply", "next_step", "opinion"]
    assert sorted(gym.tasks()) == sorted([*names, "glue-rte"])
    assert gym.rows("next_step", "train", 13)[0].input.endswith(" (A) call (B) write (C) wait")
    assert {row.outputs[0] for row in gym.rows("topic", "test", 13)} == {"delivery", "payment"}

    exec(PYTHON, {})
    sides = json.loads((place / "my_partition.json").read_text())
    assert sides["train"][-5:] == names
    assert len(sides["train"]) == 125

    # As printed, but for a backbone that needs no hub, and a moment.
    (place / "tiny.yaml").write_text(yaml12.dump({"backbone": {**TINY_T5, "train": True}}))
    train[train.index("crossfit_paper.yaml")] += "+tiny.yaml"
    short = ["data.skip_missing=true", "data.max_input_length=32", "data.max_eval_rows=1"]
    assert run([*train, *short, "trainer.max_epochs=null", "trainer.max_steps=1"]) == 0
    trained = RunFolder(place / "runs/with_mine")
    assert sorted(json.loads((trained.skills / "tasks.json").read_text())) == gym.tasks()
    assert {row["task"] for row in csv.DictReader(trained.results.open())} >= set(names)
