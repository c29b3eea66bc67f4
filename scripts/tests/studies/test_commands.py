"""A study of commands: their order, the choice of weights, and what is written."""

import csv
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from helpers.command import ROOT
from mttl.commands.comparison.stages import Cost

FOLDER = ROOT / "scripts" / "studies"
sys.path.insert(0, str(FOLDER))
COMMANDS = import_module("commands")

STUDY = """
question: Which?
seeds: [1, 2]
names: {run: "{out}/run-{seed}"}
prepare: {train: "train -k run.dir={out} run.name=run-{seed}"}
methods:
  base: {command: "predict --from {run} --in {split}.jsonl --out {answers}"}
  sharp: {command: "predict --from {run} --weight {weight} --out {answers}", weights: [0.5, 2]}
sweeps:
  removal: {run: "{run}", table: "{split}.jsonl", methods: {away: {weights: [1]}}}
metrics: [exact, "critic model=m label=l"]
choose: [exact]
"""


class Pretended:
    """Writes scores instead of running commands, and notes them."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[list[str]] = []
        self.fails = fails

    def run(self, command: list[str], log: Path, cost: Path) -> None:
        self.commands.append(command)
        if log.stem == self.fails:
            raise COMMANDS.MttlError("failed")
        seed = int(log.parent.parent.name.removeprefix("seed-"))
        if command[2] == "sweep":
            folder = Path(command[-1])
            folder.mkdir(parents=True)
            text = f"method,weight,exact,critic model=m label=l\naway,1,0.{seed},0.5\nbase,0,0,0\n"
            (folder / "scores.csv").write_text(text)
        elif command[2] == "score":
            *_, weight, split = Path(command[3]).stem.split("-")
            score = 0.5 if split == "test" else float(weight) / 10
            text = f"task,metric,score,n\na,exact,{score},9\na,critic model=m label=l,0.{seed},9\n"
            Path(command[-1]).write_text(text)
        cost.parent.mkdir(parents=True, exist_ok=True)
        Cost(ended=True).write(cost)


@pytest.fixture
def commands(tmp_path: Path) -> Any:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return COMMANDS.Commands(COMMANDS.read_settings(path, COMMANDS.CommandStudy), tmp_path / "out")


def test_finished_commands_are_not_repeated(commands, tmp_path: Path) -> None:
    job, stopped, whole = COMMANDS.Job(1), Pretended("sharp-2-dev"), Pretended()
    with pytest.raises(COMMANDS.MttlError):
        commands.run(job, stopped)
    assert not commands.ended(job)
    commands.run(job, whole)
    assert commands.ended(job)
    out = tmp_path / "out"
    training = next(commands.stages(1)).command
    assert "--resume" not in COMMANDS.started(training)
    (out / "run-1").mkdir()
    assert COMMANDS.started(training)[-1] == "--resume"
    words = [" ".join(command[2:]) for command in stopped.commands]
    assert words[0] == f"train -k run.dir={out} run.name=run-1"
    assert words[1] == f"sweep {out}/seed-1/removal-dev.yaml --out {out}/seed-1/removal-dev"
    assert words[3].endswith(f"--in dev.jsonl --out {out}/seed-1/base-1-dev.jsonl")
    written = (out / "seed-1" / "removal-dev.yaml").read_text()
    assert f"run: {out}/run-1" in written
    assert "table: dev.jsonl" in written
    assert whole.commands[0] == stopped.commands[-1]
    names = [stage.name for stage in commands.stages(1)]
    assert len(names) == len(stopped.commands) + len(whole.commands) - 1


def test_dev_chooses_the_weight_and_test_is_shown(commands, tmp_path: Path) -> None:
    for seed in (1, 2):
        commands.run(COMMANDS.Job(seed), Pretended())
    commands.write(tmp_path / "small.yaml")
    lines = (tmp_path / "small.md").read_text().splitlines()
    assert lines[0].endswith("over 2 seeds.")
    assert lines[2:] == [
        "| method | weight | exact | critic |",
        "| --- | ---: | ---: | ---: |",
        "| `away` |  | 15.0 ± 7.1 | 50.0 ± 0.0 |",
        "| `base` |  | 50.0 ± 0.0 | 15.0 ± 7.1 |",
        "| `sharp` | 2 | 50.0 ± 0.0 | 15.0 ± 7.1 |",
    ]
    rows = list(csv.DictReader((tmp_path / "small.csv").open()))
    assert len(rows) == 2 * 2 * 2 * (1 + 1 + 2)  # seeds, splits, metrics, methods with weights
    assert (tmp_path / "small.svg").is_file()

    scored = COMMANDS.read_scores(tmp_path / "small.yaml")  # another machine runs the third seed
    elsewhere = COMMANDS.Commands(commands.study, tmp_path / "elsewhere", scored)
    assert [elsewhere.ended(COMMANDS.Job(seed)) for seed in (1, 2, 3)] == [True, True, False]
    assert elsewhere.scores() == commands.scores()
