"""Records from a server that plays the hub: every request is the library's own.

It runs in a process of its own, for the library reads the hub's address when it is imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from helpers.command import ROOT
from helpers.fake_hub import fake_hub
from helpers.raw import rows
from mttl.tasks.building.hub import hub_in_reach

CARD = """---
configs:
- config_name: plain
  data_files:
  - {split: train, path: plain/train/*.parquet}
  - {split: validation, path: plain/validation/*.parquet}
dataset_info:
  config_name: plain
  features:
  - {name: text, dtype: string}
  - {name: label, dtype: int64}
  splits:
  - {name: train, num_bytes: 900, num_examples: 20}
  - {name: validation, num_bytes: 100, num_examples: 5}
---
"""
ASK = """
import json, sys
from mttl.io.errors import TaskError
from mttl.io.record import check
from mttl.tasks.building.hub import hub_records
from mttl.tasks.building.hub import UnavailableError
from mttl.tasks.task import Source

for keys, split in json.loads(sys.argv[1]):
    try:
        keys = {"train": split, "config": "plain", **keys}
        answer = ["records", list(hub_records(check(Source, keys, "", TaskError), split))]
    except UnavailableError as error:
        answer = [type(error).__name__, str(error)]
    print("ANSWER", json.dumps(answer))
"""
QUESTIONS = {
    "a table": ({"path": "a/set", "test": "validation"}, "train"),
    "its small part": ({"path": "a/set"}, "validation"),
    "no such split": ({"path": "a/set"}, "other"),
    "no such configuration": ({"path": "a/set", "config": "other"}, "train"),
    "no such set": ({"path": "b/set"}, "train"),
    "a script": ({"path": "a/script", "test": "validation"}, "train"),
    "its other split": ({"path": "a/script", "test": "validation"}, "validation"),
    "its only configuration": ({"path": "a/script", "config": None}, "train"),
    "no split of the script": ({"path": "a/script"}, "other"),
    "an old name": ({"path": "script", "mirrors": ["a/script"]}, "train"),
    "the next mirror": ({"path": "old", "mirrors": ["b/set", "a/set"]}, "train"),
    "the conversion": ({"path": "a/script", "revision": "refs/convert/parquet"}, "train"),
}


def put(folder: Path) -> None:
    """Write splits, of which two have names with the same beginning."""
    for split, n in (("train", 20), ("train_r2", 3), ("validation", 5)):
        (folder / "plain" / split).mkdir(parents=True)
        path = folder / "plain" / split / "0000.parquet"
        datasets.Dataset.from_list(rows(n)).to_parquet(path)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Every question, in turn, in one process with one cache."""
    root = tmp_path_factory.mktemp("hub")
    put(root / "a/set/main")
    (root / "a/set/main/README.md").write_text(CARD)
    put(root / "a/script/parquet")
    (root / "a/script/main").mkdir()
    (root / "a/script/main/script.py").write_text("raise SystemExit")
    with fake_hub(root, renamed={"script": "a/script"}) as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
        env |= {"HF_HOME": str(root / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-c", ASK, json.dumps(list(QUESTIONS.values()))]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    found = [line[7:] for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    return dict(zip(QUESTIONS, map(json.loads, found), strict=True))


@pytest.mark.slow
def test_tables_and_streams(answers):
    assert answers["a table"] == ["records", rows(20)]
    assert answers["its small part"] == ["records", rows(5)]


def test_loading_scripts_are_replaced_by_their_conversion(answers):
    """Split by split, also once one of them is in the library's cache."""
    for question in ("a script", "its only configuration", "an old name", "the conversion"):
        assert answers[question] == ["records", rows(20)], question
    assert answers["its other split"] == ["records", rows(5)]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("no such split", "'a/set' cannot be loaded (Bad split: other."),
        ("no such configuration", "'a/set' cannot be loaded (BuilderConfig 'other' not found."),
        ("no such set", "'b/set' cannot be loaded (Dataset 'b/set' doesn't exist"),
        ("no split of the script", "'a/script' is a loading script, which no longer runs, and 'a/"),
    ],
)
def test_what_is_not_there(answers, question, message):
    kind, said = answers[question]
    assert kind == "UnavailableError"
    assert message in said
    assert said.endswith(", then use --raw")


def test_the_hub_is_in_reach(tmp_path, monkeypatch):
    with fake_hub(tmp_path) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert hub_in_reach()
        monkeypatch.setenv("HF_ENDPOINT", f"{address}/datasets/a/b")  # which it refuses
        assert hub_in_reach()
    assert not hub_in_reach()
