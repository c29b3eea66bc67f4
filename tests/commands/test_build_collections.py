"""From the copy of a collection to a trained and adapted model."""

import json
import re
from pathlib import Path

import pytest

import mttl
from helpers.command import read_csv, train
from helpers.gyms import write_config
from helpers.raw import write_jsonl
from mttl.commands import build
from mttl.runtime.command import USER_MISTAKE, run_command
from mttl.tasks.folder import Gym
from tasks.building import test_sni, test_t0


def run(*words: object) -> int:
    """Return the exit status, as the shell would see it."""
    return run_command(lambda: build.main([str(word) for word in words]))


def test_super_natural_instructions_become_a_gym(tmp_path: Path, capsys) -> None:
    raw, out = test_sni.write(tmp_path / "raw"), tmp_path / "gym"
    words = ("--collection", "sni", "--raw", raw, "--out", out, "--samples", 13, "--workers", 1)
    assert run(*words) == 0
    assert "2 built" in capsys.readouterr().out
    sides = {"train": ["task001_yes"], "dev": [], "test": ["task002_no"]}
    assert json.loads((out / "partition.json").read_text(encoding="utf-8")) == sides
    gym = Gym(out)
    assert gym.tasks() == ["task001_yes", "task002_no"]
    first, *_ = gym.rows("task001_yes", "test", 13)
    assert first.input == (
        "Definition: Say yes.\n\nNow complete the following example -\nInput: word 0.\nOutput:"
    )
    assert first.outputs == ("yes", "Yes.")
    assert gym.description("task002_no") == "Say no."

    assert run(*words) == 0
    assert capsys.readouterr().out.count("existed") == 2
    changed = {**test_sni.CONTENT, "Instances": test_sni.INSTANCES[:4]}
    test_sni.write(raw, changed)
    assert run(*words, "--tasks", "task001_yes") == 0
    assert "1 built" in capsys.readouterr().out
    assert len(Gym(out).rows("task001_yes", "test", 13)) == 2


def test_t0_is_trained_and_adapted_by_choices(tmp_path: Path, capsys) -> None:
    raw, out = tmp_path / "raw", tmp_path / "gym"
    for name in ("imdb", "super_glue/rte"):
        test_t0.write(raw, name, test_t0.RTE[:1])
    records = [{"premise": f"p{n}", "hypothesis": "h", "label": n % 2} for n in range(70)]
    for place in ("imdb__default/train", "super_glue__rte/train", "super_glue__rte/validation"):
        write_jsonl(raw / f"{place}.jsonl", records)
    words = ("--collection", "t0", "--raw", raw, "--out", out, "--samples", 100)
    assert run(*words, "--workers", 2) == 0
    assert "2 built" in capsys.readouterr().out
    table = {row["task"]: row for row in read_csv(out / "TASKS.csv")}
    assert table["super_glue_rte"]["options"] == "from rows"
    assert (table["super_glue_rte"]["category"], table["super_glue_rte"]["metric"]) == (
        "t0/NLI",
        "accuracy",
    )
    config = write_config(tmp_path / "tiny.yaml", out, data={"max_output_length": 16})
    folder = train(config, "t0", "trainer.max_steps=1", "trainer.val_check_interval=1")
    (result,) = mttl.adapt(
        *(folder.path,),
        gym=out,
        tasks=["super_glue_rte"],
        out=tmp_path / "adapted",
        max_steps=1,
        eval_every=1,
    )
    assert result.n_empty == 0  # every answer is one of the choices


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--collection", "sni"], "--collection sni: name the folder of its downloaded copy"),
        (["--collection", "t0", "--raw", "{}/gone"], "--raw: the folder '.*gone' does not exist"),
        (["--collection", "sni", "--raw", "{}"], "train_tasks.txt' does not exist"),
        (["--collection", "t0", "--raw", "{}"], "has no 'templates' with a data set of T0"),
    ],
)
def test_wrong_options_are_refused(words, message, tmp_path: Path, capsys) -> None:
    assert run(*(word.format(tmp_path) for word in words)) == USER_MISTAKE
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
