"""`mttl train --tasks FILE --backbone DIR --router NAME`, and adaptation to tasks of a file."""

import json
from pathlib import Path

import pytest
from transformers import ByT5Tokenizer

from helpers.gyms import TINY_LLAMA
from helpers.raw import write_jsonl
from mttl.commands import adapt, train
from mttl.config.load import load_config
from mttl.models.backbone import build_random
from mttl.runtime.command import run_command
from mttl.tasks.folder import Gym

TASKS = """
kind: text-to-text
metric: ACC
input: "{text}"
output: "{answer}"
tasks:
  mood: {k: all, source: {train: mood.jsonl, dev: mood.jsonl, test: small.jsonl}}
  tone: {k: 3, source: {train: small.jsonl}}
  later: {k: 3, side: test, source: {train: small.jsonl}}
"""
SHORT = ["trainer.max_steps=1", "skills.rank=2", "adapt.max_steps=1"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, n in (("mood", 30), ("small", 10)):
        rows = [{"text": f"{name} {i}", "answer": f"answer {i % 2}"} for i in range(n)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    Path("tasks.yaml").write_text(TASKS)
    sizes = {**TINY_LLAMA["config"], "max_position_embeddings": 64}
    build_random("llama", sizes).save_pretrained("base")
    ByT5Tokenizer().save_pretrained("base")
    return tmp_path


def run(command, *words: str) -> int:
    return run_command(lambda: command.main([*words]))


def test_a_file_and_a_model_are_enough(place, capsys) -> None:
    words = ["--tasks", "tasks.yaml", "--backbone", "base", "--router", "private", "-k", *SHORT]
    assert run(train, *words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mood has 91 % of all rows; see data.sampler" in shown
    config = load_config("runs/custom-private/config.yaml")
    assert (config.router.kind, config.backbone.name) == ("private", "base")
    assert (config.data.max_input_length, config.data.max_output_length) == (8, 16)
    # All rows are one sample, whichever is named.
    (folder,) = place.glob("runs/.cache/tasks-*[!k]")
    files = sorted(path.name for path in (folder / "mood").iterdir())
    assert files == [f"mood_all_100_{split}.jsonl" for split in ("dev", "test", "train")]
    gym = Gym(folder)
    assert gym.file("mood", "train", 13) == gym.file("mood", "train", 100)
    assert gym.digest("mood", 13) == gym.digest("mood", 100) != gym.digest("tone", 100)

    # Adaptation to the tasks of a file: those on the side of tests, or all that are new.
    other = TASKS.replace("mood:", "more:").replace("side: test, ", "")
    Path("other.yaml").write_text(other.replace("k: all", "k: 2"))
    for file, tasks in (("tasks.yaml", {"later"}), ("other.yaml", {"more", "later"})):
        words = ["runs/custom-private", "--tasks", file, "--out", file[:-5], "-k", SHORT[-1]]
        assert run(adapt, *words) == 0
        lines = (place / file[:-5] / "results.jsonl").read_text().splitlines()
        assert {json.loads(line)["task"] for line in lines} == tasks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a file of custom tasks with --tasks"),
        (["--tasks", "tasks.yaml", "--router", "privat"], "'router/privat' does not exist"),
        (["--tasks", "long.yaml", "--backbone", "base"], "% of the rows of 'tone' would be cut"),
    ],
)
def test_mistakes(place, capsys, words, message) -> None:
    write_jsonl(place / "long.jsonl", [{"text": "x" * 99, "answer": "y"}] * 10)
    Path("long.yaml").write_text(TASKS.replace("small.jsonl}}", "long.jsonl}}"))
    assert run(train, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_files_and_settings_come_after_the_short_options(place) -> None:
    Path("own.yaml").write_text("router: {kind: shared}\nskills: {n_skills: 1}\n")
    words = ["-c", "crossfit.yaml", "--tasks", "tasks.yaml", "--router", "own.yaml"]
    more = ["data.partition={train: [tone]}", "run.name=x", "data.evaluate=[]", *SHORT]
    more += ["data.max_input_length=40", "data.max_output_length=20"]
    assert run(train, *words, "--backbone", "base", "-k", *more) == 0
    config = load_config("runs/x/config.yaml")
    assert config.data.partition["train"] == ["tone"]
    assert config.router.kind == "shared"
