import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from helpers.command import ROOT, read_csv
from helpers.raw import rows, write_jsonl
from mttl.commands import build
from mttl.io import yaml12
from mttl.io.files import locked
from mttl.runtime.command import run_command
from mttl.tasks.building.build_gym import Outcome
from mttl.tasks.folder import Gym

TOPIC = {
    "kind": "classification",
    "k": 2,
    "input": "{text}",
    "output": "{label|name}",
    "labels": ["red", "green", "blue"],
    "metric": "ACC",
    "category": "classification/colour",
    "description": "Name a colour.",
}


@pytest.fixture
def mine(tmp_path):
    """A file of two own tasks: a JSON file, and a data set of which there are raw records."""
    write_jsonl(tmp_path / "colours.jsonl", rows(60))
    write_jsonl(tmp_path / "raw/hues__default/train.jsonl.gz", rows(60))
    tasks = {
        "colours": {**TOPIC, "source": {"train": "colours.jsonl"}},
        "hues": {**TOPIC, "source": {"path": "hues"}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml12.dump({"tasks": tasks}))
    return path


def run(*words):
    """Return the exit status, as the shell would see it."""
    return run_command(lambda: build.main([str(word) for word in words]))


def options(mine, *more):
    gym, raw = mine.parent / "gym", mine.parent / "raw"
    return ["--config", mine, "--out", gym, "--raw", raw, "--workers", 1, *more]


def test_own_tasks_become_a_gym(mine, capsys):
    assert run(*options(mine)) == 0
    shown = capsys.readouterr()
    assert "2 built" in shown.out
    assert shown.err == "colours: built\nhues: built\n"
    gym = Gym(mine.parent / "gym")
    assert gym.tasks() == ["colours", "hues"]
    assert gym.samples("hues") == [13, 21, 42, 87, 100]
    assert gym.metric("colours") == "ACC"
    assert gym.description("colours") == "Name a colour."
    columns = {name: TOPIC[name] for name in ("metric", "category", "description")}
    columns["template"] = (
        '{"input":"{text}","output":"{label|name}","labels":["red","green","blue"]}'
    )
    assert read_csv(gym.directory / "TASKS.csv")[0] == {"task": "colours", **columns}
    assert run(*options(mine)) == 0
    assert capsys.readouterr().out.count("existed") == 2


def test_samples_and_status_and_verify(mine, capsys):
    assert run(*options(mine, "--tasks", "hues", "colours", "--samples", 13, 13, 5)) == 0
    capsys.readouterr()
    assert run(*options(mine, "--status", "--samples", 13, 5, 21)) == 0
    shown = capsys.readouterr().out
    assert shown.count("6 of 9") == 2
    assert "0 of 2 tasks are complete" in shown
    assert run(*options(mine, "--status", "--samples", 13)) == 0
    assert "2 of 2 tasks are complete" in capsys.readouterr().out
    assert run(*options(mine, "--verify", "--samples", 13)) == 0
    assert "2 built" in capsys.readouterr().out
    path = mine.parent / "gym/hues/hues_2_13_dev.jsonl"
    path.write_text("x\ty\n")
    assert run(*options(mine, "--verify", "--samples", 13)) == 1
    assert "hues_2_13_dev.jsonl has changed since it was built" in capsys.readouterr().out
    assert path.read_text() == "x\ty\n"
    assert run("--status", "--out", mine.parent / "none", "--tasks", "boolq") == 0
    assert "absent" in capsys.readouterr().out


def test_one_source_that_fails_never_stops_the_rest(mine, capsys):
    (mine.parent / "colours.jsonl").write_text('{"text": "a"}\n')
    words = options(mine, "--tasks", "boolq", "hues", "colours")
    assert run(*words) == 2
    shown = capsys.readouterr().out
    assert "1 unavailable" in shown
    assert "1 failed" in shown
    assert "1 built" in shown
    words_only = "".join(shown.replace("│", " ").split())  # a narrow table breaks its lines
    assert "hasnofileboolq__default/train.jsonl[.gz]" in words_only
    assert "thefield'label'ismissing" in words_only
    assert Gym(mine.parent / "gym").tasks() == ["hues"]


def test_choice_of_tasks(mine, tmp_path):
    def names(*words):
        return [task.name for task in build.choose(build.main.parse(list(words)), ())]

    own = "--config", str(mine)
    assert len(names()) == 160
    assert names("--tasks", "boolq", "ag_news", "boolq") == ["boolq", "ag_news"]
    assert len(names("--partition", "random")) == 160
    assert names(*own) == ["colours", "hues"]
    assert names(*own, "--tasks", "boolq", "hues") == ["boolq", "hues"]
    partition = tmp_path / "few.json"
    partition.write_text(json.dumps({"train": ["boolq"], "test": ["colours"]}))
    assert names(*own, "--partition", str(partition)) == ["boolq", "colours", "hues"]


def test_addresses_are_not_cut(capsys):
    address = f"https://huggingface.co/datasets/{'owner' * 30}/name"
    build.print_outcomes([Outcome("boolq", "unavailable", f"Download it from {address}, then")])
    assert f"boolq: Download it from {address}, then\n" in capsys.readouterr().out


def test_mistakes(refused):
    for words, message in [
        (["--samples", "x"], "'x' must be a whole number of at least 0 and at most"),
        (["--samples", 2**32], "must be a whole number of at least 0 and at most"),
        (["--workers", "0"], "'0' must be a whole number of at least 1"),
        (["--verify", "--status"], "not allowed with"),
    ]:
        assert message in refused(build.main, *words)


@pytest.mark.parametrize("answers", [True, False])
def test_a_hub_that_does_not_answer_is_asked_once(mine, capsys, monkeypatch, answers):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    asked = []
    monkeypatch.setattr("mttl.tasks.building.hub.hub_in_reach", lambda: asked.append(1) or answers)
    words = options(mine)[:4]  # without --raw
    assert run(*words, "--workers", 1) == 2
    assert len(asked) == 1
    assert os.environ.get("HF_HUB_OFFLINE") == (None if answers else "1")
    shown = capsys.readouterr()
    assert ("the hub is unreachable; only downloaded data can be used" in shown.err) is not answers
    assert "1 built, 1 unavailable" in shown.out
    assert run(*words, "--workers", 1, "--tasks", "boolq") == 2
    assert len(asked) == (2 if answers else 1)


def test_the_hub_is_not_asked_where_it_is_not_needed(mine, monkeypatch, refused):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("mttl.tasks.building.hub.hub_in_reach", lambda: pytest.fail("asked"))
    with locked(mine.parent / "gym/.lock"):
        assert "another mttl build is writing to '" in refused(build.main, *options(mine))
    assert run(*options(mine)) == 0
    assert run("--tasks", "proto_qa", "--out", mine.parent / "gym") == 2


def test_a_full_disk(mine, capsys, monkeypatch):
    """What had been finished stays, is in the tables, and is not built again."""
    sync = os.fsync
    n_calls = 0

    def fsync(number):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert run(*options(mine)) == 2
    shown = capsys.readouterr()
    assert "error: cannot write '" in shown.err
    assert "gym/hues': No space left on device" in shown.err
    assert "1 built" in shown.out
    assert "colours,ACC" in (mine.parent / "gym/TASKS.csv").read_text()
    assert list((mine.parent / "gym").rglob("*.part")) == []
    assert run(*options(mine)) == 0
    assert "existed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2])
def test_ctrl_c(mine, n_workers):
    """While a long source is read: what is finished stays, and no part of a file is left."""
    write_jsonl(mine.parent / "raw/hues__default/train.jsonl.gz", rows(400_000))
    tree = yaml12.parse(mine.read_text())
    tree["tasks"]["hues"]["rows"] = "{label} is not 7"  # so that all have to be read
    mine.write_text(yaml12.dump(tree))
    words = [str(word) for word in options(mine, "--workers", n_workers)]
    process = subprocess.Popen(
        [sys.executable, "-m", "mttl", "build", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        # A job in the background of a shell ignores SIGINT, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "colours: built\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    out, error = process.communicate(timeout=250)
    assert process.returncode == 130, error
    assert error.splitlines()[-1] == "interrupted"
    assert "1 built" in out
    gym = mine.parent / "gym"
    assert len(list((gym / "colours").glob("*.jsonl"))) == 15
    assert [path for path in gym.rglob("*") if "hues" in path.name] in ([], [gym / "hues"])
    assert "colours" in (gym / "TASKS.csv").read_text()
