"""Cross-lingual transfer: the settings of all commands, and a study from end to end."""

import csv
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from mttl.__main__ import main as run_command
from mttl.commands import build, sparse, train
from mttl.commands.comparison.stages import Cost
from mttl.config.load import load_any_config

FOLDER = ROOT / "scripts" / "studies"
sys.path.insert(0, str(FOLDER))
TRANSFER = import_module("transfer")


@pytest.mark.parametrize("name", ["gemma", "generated"])
def test_the_arguments_of_all_trainings_are_valid(name: str, tmp_path: Path) -> None:
    study = TRANSFER.read_transfer(FOLDER / "cross_lingual" / f"{name}.yaml")
    transfer = TRANSFER.Transfer(study, tmp_path)
    stages = {x.name: x.command for job in transfer.jobs for x in transfer.trainings(job)}
    for command in stages.values():
        if command[0] == "sparse":
            sparse.main.parse(command[1:])
        else:
            given = train.main.parse(command[1:])
            load_any_config(given.config, given.override)


def test_scores_of_another_machine_are_kept(tmp_path: Path) -> None:
    path = FOLDER / "cross_lingual" / "gemma.yaml"
    transfer = TRANSFER.Transfer(TRANSFER.read_transfer(path), tmp_path, TRANSFER.read_scores(path))
    transfer.scorings = lambda job: [TRANSFER.Stage("none", [])]  # those of others need the tasks
    assert 0 < sum(map(transfer.ended, transfer.jobs)) < len(transfer.jobs)
    transfer.write(tmp_path / "copy.yaml")
    for suffix in (".csv", ".md"):
        assert (tmp_path / f"copy{suffix}").read_text() == path.with_suffix(suffix).read_text()


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    text = (FOLDER / "cross_lingual" / "generated.yaml").read_text()
    for old, new, message in (
        ("- [madx, adapter]", "- [madx, lora]", "compare: 'lora' must be one of adapter, madx"),
        ("[[ana, beo]]", "[[ana, ciu]]", "directions: 'ciu' must be one of ana, beo"),
    ):
        (tmp_path / "study.yaml").write_text(text.replace(old, new))
        with pytest.raises(TRANSFER.ConfigError, match=message):
            TRANSFER.read_transfer(tmp_path / "study.yaml")


def test_an_interrupted_training_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    study = TRANSFER.read_transfer(FOLDER / "cross_lingual" / "generated.yaml")
    transfer = TRANSFER.Transfer(study, tmp_path)
    job = transfer.jobs[0]
    transfer.scorings = lambda job: []  # they need the tasks
    commands = []

    class Stopped:
        ended = False

        def run(self, command: list[str], log: Path, cost: Path) -> None:
            commands.append(command)
            checkpoints.mkdir(parents=True, exist_ok=True)
            Cost(ended=self.ended).write(cost)

    checkpoints = tmp_path / "runs" / job.training / "checkpoints"
    processes = Stopped()
    transfer.run(job, processes)
    assert checkpoints.is_dir()
    processes.ended = True
    for _ in range(2):
        transfer.run(job, processes)
    assert ["--resume" in command for command in commands] == [False, True]
    assert not checkpoints.exists()


class InProcess:
    """Runs commands in this process, which has imported everything, and notes them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run(self, command: list[str], log: Path, cost: Path) -> None:
        self.names.append(log.stem)
        log.parent.mkdir(exist_ok=True)
        with log.open("w") as file, redirect_stdout(file):
            assert run_command(command[2:]) == 0
        Cost(cpu_minutes=1.0, ended=True).write(cost)


@pytest.mark.slow
def test_a_study_runs_once_from_end_to_end(tmp_path: Path, capsys) -> None:
    folder, out, path = tmp_path / "languages", tmp_path / "out", tmp_path / "small.yaml"
    languages = load_recipe(ROOT / "scripts" / "gyms" / "build_languages.py")
    languages.main(["--out", str(folder), "--sentences", "40", "--lines", "60"])
    given = ["--config", str(folder / "tasks.yaml"), "--out", str(folder / "gym")]
    assert build.main([*given, "--samples", "100", "--workers", "1"]) == 0
    text = (FOLDER / "cross_lingual" / "generated.yaml").read_text()
    text = text.replace("languages/", f"{folder}/").replace(
        "data/backbone", f"{ROOT}/data/backbone"
    )
    path.write_text(text.replace("=20", "=6").replace("steps 20", "steps 6"))
    transfer = TRANSFER.Transfer(TRANSFER.read_transfer(path), out)
    transfer.prepare()
    processes = InProcess()
    for job in [*transfer.jobs, *transfer.jobs]:  # nothing is run twice
        transfer.run(job, processes)
    assert processes.names == [
        "adapter-words-ana-13",
        *(f"adapter-words-ana-13-{name}-none" for name in ("beo", "ana")),
        *(
            f"{method}-{name}"
            for method in ("madx", "lt_sft")
            for name in (
                *("ana", "beo", "words-ana-13", "words-ana-13-beo-beo"),
                *("words-ana-13-beo-ana", "words-ana-13-ana-ana"),
            )
        ),
    ]
    capsys.readouterr()
    assert TRANSFER.main([str(path), "--out", str(out)]) == 0  # writes the results
    table = path.with_suffix(".md").read_text()
    assert table.startswith("3 of 3 jobs have finished.")
    assert table in capsys.readouterr().out
    rows = list(csv.DictReader(path.with_suffix(".csv").open()))
    scores = {(row["method"], row["scored"], row["skill"]): float(row["score"]) for row in rows}
    assert len(scores) == 8
    assert all(0 < score < 100 for score in scores.values())
    for method, skill, name in (("adapter", "none", "none"), ("madx", "target", "beo")):
        answers = out / "answers" / f"{method}-words-ana-13-beo-{name}.jsonl"
        pairs = [
            pair
            for row in map(json.loads, answers.read_text().splitlines())
            for pair in zip(row["prediction"].split(), row["outputs"][0].split(), strict=True)
        ]
        accuracy = 100 * sum(one == other for one, other in pairs) / len(pairs)
        assert scores[method, "target", skill] == pytest.approx(accuracy, abs=0.006)  # two digits
    difference = scores["madx", "target", "target"] - scores["adapter", "target", "none"]
    assert f"| `madx` − `adapter` | `words` | {difference:+.1f} |" in table
    assert TRANSFER.main([str(path), "--out", str(out), "--show"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(processes.names)
    path.write_text(path.read_text().replace("--lr 1e-3", "--lr 2e-3"))
    with pytest.raises(TRANSFER.ConfigError, match="were made with other settings: sparse"):
        TRANSFER.main([str(path), "--out", str(out)])
