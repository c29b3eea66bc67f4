"""A configuration names custom tasks, and they are trained and adapted to."""

import csv
import json
import logging
import re
from pathlib import Path

import pytest

import mttl
from helpers.command import train
from helpers.gyms import write_config
from helpers.raw import write_jsonl
from mttl.commands import adapt, export, predict
from mttl.config.data_schema import Data
from mttl.config.load import load_config
from mttl.data.chosen_tasks import gym_folder, open_gym, partition_of
from mttl.io.errors import ConfigError, TaskError
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


@pytest.fixture
def run_file(tasks: Path) -> Path:
    own = {"dir": None, "tasks": str(tasks), "partition": "auto", "max_output_length": 20}
    return write_config(tasks.with_name("run.yaml"), tasks.parent, data=own)


def test_tasks_are_converted_once_into_the_cache(tasks: Path, run_file: Path) -> None:
    config = load_config([str(run_file)])
    gym = open_gym(config)
    assert gym.directory == gym_folder(config)
    assert gym.directory.parent == Path(config.run.dir) / ".cache"
    assert gym.rows("first", "test", 100)[2].input == "test 2\ty\nz"
    assert gym.metric("second") == "ACC"
    with pytest.raises(TaskError, match=r"the task file '.*mine.yaml' has no task 'frst'. Did you"):
        gym.samples("frst")
    before = {path: path.stat().st_mtime_ns for path in gym.directory.glob("*/*")}
    assert len(before) == 9
    open_gym(config)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    other = open_gym(config, samples=[13])
    assert (other.samples("first"), other.samples("second")) == (
        [100],
        [13],
    )  # all rows: one sample
    write_jsonl(tasks.with_name("dev.jsonl"), [{"text": "new", "answer": "x"}])
    assert len(open_gym(config).rows("first", "dev", 100)) == 1


def test_partitions(tasks: Path, run_file: Path) -> None:
    data = Data(tasks=str(tasks))
    gym = open_gym(load_config([str(run_file)]))
    assert partition_of(data, gym) == Partition(train=("first", "second"), test=("unseen",))
    alone = Data(dir=str(gym.directory))
    assert partition_of(alone, gym) == Partition(train=("first", "second", "unseen"))
    tasks.with_name("none.yaml").write_text(TASKS.replace("kind:", "side: test\nkind:", 1))
    with pytest.raises(TaskError, match=r"none.yaml'\) has no training task, because every task"):
        partition_of(Data(tasks=str(tasks.with_name("none.yaml"))), gym)
    lists = Data(tasks=str(tasks), partition={"train": ["second"], "dev": ["first"]})
    assert partition_of(lists, gym) == Partition(train=("second",), dev=("first",))
    file = tasks.with_name("partition.json")
    file.write_text(json.dumps({"train": ["first"]}))
    assert partition_of(Data(tasks=str(tasks), partition=str(file)), gym).train == ("first",)
    misspelt = Data(tasks=str(tasks), partition={"train": ["first"], "tset": []})
    with pytest.raises(TaskError, match=r"data\.partition: unknown key 'tset'"):
        partition_of(misspelt, gym)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{answer}", "{reply}", "row 1: the field 'reply' is missing; the record has text"),
        ("dev: dev.jsonl", "dev: none.jsonl", "none.jsonl' does not exist"),
        ("{train: train.jsonl}", "{path: glue}", "mine.yaml --out DIR`, and set data.dir=DIR"),
        ("  first:", "  boolq:", "' defines 'boolq', which is the name of a task of CrossFit;"),
    ],
)
def test_a_task_that_cannot_be_converted_is_named(tasks, run_file, old, new, message) -> None:
    tasks.write_text(TASKS.replace(old, new, 1))
    with pytest.raises(TaskError, match=re.escape(message)):
        open_gym(load_config([str(run_file)]))
    assert list(tasks.parent.rglob("first")) == []


def test_an_unknown_backbone_is_refused_before_the_data_are_converted(run_file: Path) -> None:
    unknown = ["backbone.kind=pretrained", "backbone.name=nowhere"]
    with pytest.raises(ConfigError, match=r"'nowhere'.*: --backbone DIR, or backbone.name=DIR"):
        train(run_file, "own", *unknown)
    assert not gym_folder(load_config([str(run_file)])).exists()


def test_mistakes_in_the_section(tasks: Path) -> None:
    config = write_config(tasks.with_name("run.yaml"), tasks.parent)
    for both in (["data.dir=null"], [f"data.tasks={tasks}"]):
        with pytest.raises(ConfigError, match=r"set exactly one of dir \(a folder of tasks in"):
            load_config([str(config)], both)
    with pytest.raises(ConfigError, match=r"data\.partition"):
        load_config([str(config)], ["data.partition=3"])


LABELS = [f"label {n}|" for n in range(77)]
METRIC = """
import torchmetrics, torch


class NotCopied(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("right", torch.zeros(0), dist_reduce_fx="cat")

    def update(self, predictions, references, rows):
        assert all(row["columns"]["id"] == len(row["input"]) for row in rows)
        right = [float(p != row["input"]) for p, row in zip(predictions, rows)]
        self.right = torch.cat([self.right, torch.tensor(right)])

    def compute(self):
        return self.right.mean()
"""
DECLARED = """
kind: text-to-text
k: all
input: "Mail: {message}"
source: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
tasks:
  intent: {output: "{label}", options: from train}
  mood: {k: 10, output: "{mood}", options: [good, "bad|"]}
  reply: {k: 10, output: "{answer}", columns: [id]}
  unseen: {side: test, output: "{mood}", options: [good, "bad|"]}
"""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch, caplog, capsys) -> tuple[Path, str]:
    """A run on tasks with declared options, and what it printed and logged."""
    for split, n in (("train", 77), ("dev", 3), ("test", 4)):
        rows = [
            {"message": f"text {i}", "id": len(f"Mail: text {i}"), "label": LABELS[i]}
            | {"mood": ("good", "bad|")[i % 2], "answer": "Yes"}
            for i in range(n)
        ]
        rows[-1]["mood"] = "unsure"
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    (tmp_path / "own_metric.py").write_text(METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.yaml").write_text(DECLARED)
    own = {"dir": None, "tasks": str(tmp_path / "mine.yaml"), "partition": "auto"}
    own |= {"metrics": {"reply": "own_metric:NotCopied"}, "max_output_length": 20}
    config = write_config(tmp_path / "run.yaml", tmp_path, data=own)
    with caplog.at_level(logging.WARNING):
        run = train(config, "own", "trainer.max_steps=2", "trainer.val_check_interval=2")
    return run.path, capsys.readouterr().out + caplog.text


def test_declared_options_are_scored_and_templates_kept(declared, tmp_path, capsys) -> None:
    path, shown = declared
    assert "scored options: 2 tasks; generated: 1" in shown
    assert "intent has 79 % of all rows; see data.sampler" in shown
    assert "mood, dev rows: 1 of 3 answers are not among the options, such as 'unsure'" in shown
    with (path / "results.csv").open() as file:
        metrics = {row["task"]: row["metric"] for row in csv.DictReader(file)}
    assert metrics["intent"] == metrics["mood"] == "accuracy"
    assert metrics["reply"] == "own_metric:NotCopied"
    run = mttl.load(path)
    assert run.form.task_options == {"intent": sorted(LABELS), "mood": ["good", "bad|"]}
    answers = run.predict("intent", ["Mail: text 1", "Mail: x"])
    assert {*answers} <= {*LABELS}

    table = tmp_path / "new.csv"
    table.write_text("message,label\ntext 1,label 1|\nx,\n,\n")
    given = ["--from", str(path), "--in", str(table), "--out", str(tmp_path / "out.csv")]
    assert predict.main([*given, "--task", "intent"]) == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["prediction"] for row in rows] == [*answers, ""]
    assert list(rows[0]) == ["message", "label", "prediction", "unanswered"]
    assert re.search(r"intent +│ +(0|100)\.0 +│ +1 +│", capsys.readouterr().err)

    # Another file, and options from a file.
    table.write_text("text\nx\n")
    with pytest.raises(TaskError, match=r"row 1: the column 'message' is missing; .*text"):
        predict.main(["--from", str(path), "--in", str(table), "--task", "intent"])
    (tmp_path / "labels.txt").write_text("one\ntwo words\n\n")
    choices = ["--choices", f"@{tmp_path / 'labels.txt'}", "--input", "Mail: {text}"]
    (tmp_path / "out.csv").unlink()
    assert predict.main([*given, "--task", "reply", *choices]) == 0
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row["prediction"] in ("one", "two words")
    chosen = run.choose("reply", ["Mail: x"], ["one", "two words"])[0]
    assert json.loads(row["probabilities"]) == pytest.approx(chosen.probabilities, abs=1e-6)
    (tmp_path / "out.csv").unlink()
    with pytest.raises(TaskError, match=r"csv, row 1: the field 'txet' is missing; .* has text"):
        predict.main([*given, "--task", "reply", "--input", "{txet}"])

    assert export.main([str(path), "--task", "mood", "--out", str(tmp_path / "peft")]) == 0
    card = (tmp_path / "peft" / "README.md").read_text()
    assert '"content": "Mail: {message}".format(**{"message": "your question"})' in card
    assert "- `mood`: `Mail: {message}`" in card


def test_an_adapted_task_keeps_its_template(declared, tmp_path, capsys) -> None:
    path, _ = declared
    adapted = path / "adapt-all/models/unseen-100-13"
    given = [str(path), "-k", "adapt.max_steps=1"]
    assert adapt.main(given) == 0
    shown = capsys.readouterr().out
    assert re.search(r"test ┃ copy ┃ major ┃ jobs ┃", shown)
    # By hand: four rows, the last without a right option; most training rows are `good`.
    assert re.search(r"unseen │ accuracy │ [^│]+│ [^│]+│  0.0 │  50.0 │", shown)
    assert "repeat the command with --save" in shown
    assert adapt.main([*given, "--save"]) == 0
    assert f"mttl predict --adapted {adapted} --in FILE" in capsys.readouterr().out
    with pytest.raises(TaskError, match=f"adapted model is in '{adapted}': .* add it by --adapted"):
        predict.main([str(path), "--task", "unseen"])
    (tmp_path / "new.csv").write_text("message\ntext 1\n")
    given = ["--adapted", str(adapted), "--in", str(tmp_path / "new.csv")]
    assert predict.main([*given, "--out", str(tmp_path / "out.csv")]) == 0
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row["prediction"] in ("good", "bad|")
    assert [row["prediction"]] == mttl.load(adapted).predict("unseen", ["Mail: text 1"])
