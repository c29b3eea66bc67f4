"""A configuration names custom tasks, and they are trained and adapted to."""

import json
import re
from pathlib import Path

import pytest

import mttl
from helpers.command import train
from helpers.gyms import write_config
from helpers.raw import write_jsonl
from mttl.config.data_schema import Data
from mttl.config.load import load_config
from mttl.data.chosen_tasks import gym_folder, open_gym, partition_of
from mttl.io.errors import ConfigError, TaskError
from mttl.io.shipped_files import shipped_folder
from mttl.tasks.partition import Partition

TASKS = """
kind: text-to-text
metric: ACC
k: all
input: "{text}"
output: "{answer}"
tasks:
  first:
    source: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
  second:
    k: 3
    source: {train: train.jsonl}
  unseen:
    side: test
    source: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
"""
SEVERAL_LINES = "if x:\n\treturn"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for split, n in (("train", 12), ("dev", 4), ("test", 3)):
        rows = [{"text": f"{split} {i}\ty\nz", "answer": SEVERAL_LINES} for i in range(n)]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    path = tmp_path / "mine.yaml"
    path.write_text(TASKS)
    return path


def test_the_gym_lies_beside_the_file_and_is_built_once(tasks: Path) -> None:
    data = Data(tasks=str(tasks))
    gym = open_gym(data)
    assert gym.directory == gym_folder(data) == tasks.with_suffix(".gym")
    assert [gym.shots(task) for task in gym.tasks()] == [None, 3, None]
    assert gym.rows("first", "test", 100)[2].input == "test 2\ty\nz"
    assert gym.metric("second") == "ACC"
    before = {path: path.stat().st_mtime_ns for path in gym.directory.glob("*/*")}
    assert len(before) == 12
    open_gym(data)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert open_gym(data, samples=[13]).samples("first") == [13, 100]
    other = Data(dir=str(tasks.parent / "other"), tasks=str(tasks))
    assert open_gym(other).directory == tasks.parent / "other"


def test_partitions(tasks: Path) -> None:
    data = Data(tasks=str(tasks))
    gym = open_gym(data)
    assert partition_of(data, gym) == Partition(train=("first", "second"), test=("unseen",))
    alone = Data(dir=str(gym.directory))
    assert partition_of(alone, gym) == Partition(train=("first", "second", "unseen"))
    tasks.with_name("none.yaml").write_text(TASKS.replace("kind:", "side: test\nkind:", 1))
    with pytest.raises(TaskError, match=r"none\.yaml'\) trains no task: .* another `side`"):
        partition_of(Data(tasks=str(tasks.with_name("none.yaml"))), gym)
    lists = Data(tasks=str(tasks), partition={"train": ["second"], "dev": ["first"]})
    assert partition_of(lists, gym) == Partition(train=("second",), dev=("first",))
    file = tasks.with_name("partition.json")
    file.write_text(json.dumps({"train": ["first"]}))
    assert partition_of(Data(tasks=str(tasks), partition=str(file)), gym) == Partition(
        train=("first",)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k: 3", "k: 9", "mine.yaml'): task 'second': k is 9, and train would take all"),
        ("{answer}", "{reply}", "row 1: the field 'reply' is missing; the record has text"),
        ("dev: dev.jsonl", "dev: none.jsonl", "mine.yaml'): task 'first': the file"),
        ("  first:", "  boolq:", "defines 'boolq', which is a task of CrossFit's"),
        ("k: all", "k: none", "k: \"none\" must be a whole number from 1 on, or 'all'"),
    ],
)
def test_a_task_that_cannot_be_built_is_named(
    tasks: Path, old: str, new: str, message: str
) -> None:
    tasks.write_text(TASKS.replace(old, new, 1))
    with pytest.raises(TaskError, match=re.escape(message)):
        open_gym(Data(tasks=str(tasks)))


@pytest.mark.parametrize("name", ["lexical", "grid"])
def test_nothing_is_built_into_a_gym_that_ships(tasks: Path, name: str) -> None:
    table = shipped_folder() / "data" / name / "TASKS.csv"
    before = table.read_bytes()
    with pytest.raises(ConfigError, match=rf"into data\.dir \('data/{name}'\).*data\.dir=null"):
        open_gym(Data(dir=f"data/{name}", tasks=str(tasks)))
    assert table.read_bytes() == before
    assert not (table.parent / "first").exists()


def test_mistakes_in_the_section(tasks: Path) -> None:
    config = write_config(tasks.with_name("run.yaml"), tasks.parent)
    with pytest.raises(ConfigError, match="dir must name the folder of a gym"):
        load_config([str(config)], ["data.dir=null"])
    with pytest.raises(ConfigError, match=r"data\.partition"):
        load_config([str(config)], ["data.partition=3"])
    data = Data(tasks=str(tasks), partition={"train": ["first"], "tset": []})
    with pytest.raises(TaskError, match=r"data\.partition: unknown key 'tset'"):
        partition_of(data, open_gym(data))


def test_a_run_on_files_of_ones_own(tasks: Path) -> None:
    """From three files to scores and an adapted model; nothing is built by hand."""
    own = {"dir": None, "tasks": str(tasks), "partition": "auto", "max_output_length": 20}
    config = write_config(tasks.with_name("run.yaml"), tasks.parent, data=own)
    run = train(config, "own", "trainer.max_steps=2", "trainer.val_check_interval=2")
    assert json.loads((run.skills / "tasks.json").read_text()) == ["first", "second"]
    (line, *_) = (run.predictions / "first_test.jsonl").read_text().splitlines()
    assert SEVERAL_LINES in json.loads(line)["references"]
    (result,) = mttl.adapt(run.path, max_steps=1, seeds=[1])
    assert (result.task, result.sample, result.n_answers) == ("unseen", 100, 3)
    pairs = [("a\tb\nc", SEVERAL_LINES)] * 4
    (answer,) = mttl.adapt_to(run.path, pairs, task="code", max_steps=1)(["x\ny"])
    assert isinstance(answer, str)
