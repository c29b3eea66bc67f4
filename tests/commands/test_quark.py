"""Rounds of sampling and training, from a task file to a run; interrupted and continued."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

import mttl
from helpers.command import read_csv
from helpers.dialogues import train_dialogues
from mttl.commands import quark
from mttl.commands import train as training
from mttl.io.errors import ConfigError, MttlError
from mttl.metrics.crossfit import score_answers
from mttl.tasks.folder import Gym

TASKS = """
kind: dialogue
k: 6
metric: rouge
tasks:
  guide: {source: {train: talk.jsonl}}
  other: {source: {train: talk.jsonl}}
"""


BOTH = ("data.split=train+dev", "data.validation=none", "data.evaluate=[test]")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    talk = [
        {"history": f"{n}?", "knowledge": f"a{n} b c d e f g", "response": f"b{n}"}
        for n in range(20)
    ]
    data = {"max_input_length": 60, "max_output_length": 8, "validation": "dev", "batch_size": 4}
    train_dialogues(tmp_path, TASKS, talk, **data)
    return tmp_path / "runs" / "talk"


def test_rounds(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def apart(command: list[str], **_: Any) -> Any:  # in this process, which is faster
        calls.append(command[3:])
        if len(calls) == 2:
            return subprocess.CompletedProcess(command, 1)
        training.main(command[4:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", apart)
    out = tmp_path / "runs" / "quark"
    given = [str(run), "--task", "guide", "--metric", "chrf", "--bins", "3", "--rounds", "2"]
    given += ["--out", str(out), "-k", "trainer.max_steps=2"]
    with pytest.raises(MttlError, match="the training of round 2 failed; repeat the command"):
        quark.main(given)
    assert not out.exists()
    sampled = (tmp_path / "runs/quark.rounds/data2/guide/guide_6_100_train.jsonl").read_bytes()
    assert quark.main(given) == 0
    assert len(calls) == 3  # round 1 is not repeated, and neither are the samples of round 2
    kept = (tmp_path / "runs/quark.rounds/data2/guide/guide_6_100_train.jsonl").read_bytes()
    assert kept == sampled

    # The pool has the samples of both rounds, with their scores and bins of all scores.
    gyms = [Gym(tmp_path / f"runs/quark.rounds/data{number}") for number in (1, 2)]
    first, both = (
        [(row.input, *row.outputs, row.columns["score"]) for row in gym.rows("guide", "train", 100)]
        for gym in gyms
    )
    assert first == both[: len(first)]
    assert len(first) < len(both) <= 12
    built = Gym(next(tmp_path.glob("runs/.cache/tasks-*[!k]")))
    references = {row.input: row.outputs for row in built.rows("guide", "train", 100)}
    gym = gyms[1]
    template = gym.template("guide")
    assert template is not None
    for row in gym.rows("guide", "train", 100):
        expected = score_answers("chrf", row.outputs, [references[row.input]])
        assert row.columns["score"] == expected
        below = sum(expected >= edge for edge in template.control["chrf"])
        assert row.columns["control"] == {"chrf": 1 + below}
    assert len(template.control["chrf"]) == min(3, len({score for *_, score in both})) - 1

    # The result answers with the highest code, and its router started from that of the run.
    found = mttl.load(out)
    code = 1 + len(template.control["chrf"])
    assert found.form.prompt_prefix("guide").text == f"[guide] [chrf {code}] "
    assert found.form.prompt_prefix("other").text == "[other] "
    assert found.predict("guide", ["knowledge: a\nuser: b"])
    assert read_csv(out / "results.csv")[0]["metric"] == "chrf"
    assert "train/divergence" in (out / "metrics.csv").read_text()


def test_wrong_options(run: Path, tmp_path: Path) -> None:
    given = [str(run), "--metric", "chrf", "--out", str(tmp_path / "new")]
    with pytest.raises(ConfigError, match=r"must leave the tasks of the run \(guide, other\)"):
        quark.main([*given, "--task", "guide", "-k", *BOTH])
    with pytest.raises(ConfigError, match="already exists; choose another path"):
        quark.main([str(run), "--metric", "chrf", "--task", "guide", "--out", str(run)])
