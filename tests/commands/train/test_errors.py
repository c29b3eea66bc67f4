"""Mistakes of a user of the command: a clean message, status 2, nothing written, nothing lost."""

import errno
import json
from pathlib import Path

import pytest

from helpers.command import arguments, load_recipe
from helpers.gyms import TASKS, TINY_LLAMA, write_config, write_gym

NAMES = tuple(TASKS)


@pytest.fixture
def gym(tmp_path: Path) -> Path:
    return write_gym(tmp_path / "gym")


@pytest.fixture
def config(tmp_path: Path, gym: Path) -> Path:
    return write_config(tmp_path / "tiny.yaml", gym)


@pytest.fixture
def fails(refused, config):
    """Run the command, which must fail as a user's mistake does, and return its message."""

    def run(*overrides, config=config, resume=False, finished=False) -> str:
        main = load_recipe().main
        message = refused(main, *arguments(config, "run", overrides, resume))
        assert (config.parent / "runs" / "run" / "skills").exists() == finished
        return message

    return run


def nothing_written(config: Path) -> bool:
    return not (config.parent / "runs" / "run").exists()


def test_a_tokenizer_without_a_chat_template(fails, gym, tmp_path):
    data = {"template": "chat"}
    config = write_config(tmp_path / "chat.yaml", gym, backbone=TINY_LLAMA, data=data)
    told = fails(config=config)
    assert "has no chat template. Name a tokenizer with another one" in told
    assert nothing_written(config)


def test_a_task_that_is_not_in_the_gym(fails, config, tmp_path):
    partition = tmp_path / "more.json"
    partition.write_text(json.dumps({"train": [NAMES[0], "revers"], "dev": [], "test": []}))
    message = fails(f"data.partition={partition}")
    assert "revers" in message
    assert "skip_missing" in message
    assert nothing_written(config)


@pytest.mark.parametrize(("content", "reason"), [("", "empty"), ("good\tfine\nbad line\n", "2")])
def test_an_empty_or_malformed_file(fails, config, gym, content, reason):
    file = next((gym / NAMES[1]).glob("*_train.tsv"))
    file.write_text(content)
    message = fails()
    assert file.name in message.replace(" ", "")
    assert reason in message
    assert nothing_written(config)


def test_a_file_that_is_scored_in_the_end_is_read_before_training(fails, config, gym):
    file = next(gym.glob(f"{NAMES[0]}/*_test.tsv"))
    file.write_text("no tab\n")
    assert "line 1: no tab between input and output" in fails()
    file.unlink()
    assert "has no test file for sample" in fails()
    assert nothing_written(config)


def test_an_unknown_metric(fails, config, gym):
    table = gym / "TASKS.csv"
    table.write_text(table.read_text().replace("EM", "Exact"))
    message = fails()
    assert "TASKS.csv" in message
    assert "the metric 'Exact'" in message
    assert nothing_written(config)


@pytest.mark.parametrize("damaged", ["config.yaml", "checkpoints/last.ckpt"])
def test_a_damaged_run_is_not_resumed(fails, config, damaged):
    assert load_recipe().main(arguments(config, "run", ("trainer.max_steps=1",), False)) == 0
    path = config.parent / "runs" / "run" / damaged
    if damaged == "config.yaml":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    message = fails("trainer.max_steps=1", resume=True, finished=True)
    assert damaged in message
    assert "-k run.name=NAME" in message


def test_an_existing_run_is_never_overwritten(fails, config, tmp_path):
    earlier = tmp_path / "runs" / "run" / "results.csv"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("precious")
    assert "exists already and is never overwritten" in fails()
    assert earlier.read_text() == "precious"


def test_nothing_to_resume(fails, config):
    assert "there is nothing to resume" in fails(resume=True)
    assert nothing_written(config)


def test_no_space_to_write(fails, config, monkeypatch):
    write_text = Path.write_text

    def full(path: Path, *args, **kwargs) -> int:
        if "config.yaml" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    message = fails()
    assert "error: cannot write" in message
    assert "config.yaml" in message
    assert "No space left on device" in message
    assert not list((config.parent / "runs" / "run").iterdir())


def test_no_hub(fails, config):
    overrides = ("backbone.kind=pretrained", "backbone.name=nobody/nothing")
    message = fails(*overrides)
    assert "folder here and could not be loaded from the" in message
    assert "hf download nobody/nothing" in message
    assert nothing_written(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("skills.rnk=4", "section 'skills' has no 'rnk'. Did you mean 'rank'?"),
        ("router.kind=polytropn", "router.kind: 'polytropn' must be one of polytropon, "),
        ("skills.n_heads=3", "SelfAttention.q': n_heads (3) must divide in_features"),
        ("skills.targets=[q_prj]", "the target 'q_prj' matches no linear layer"),
        ("backbone.model_type=t55", "('t55') is not a model type of transformers"),
        ("backbone.config.d_modl=8", "backbone.config.d_modl is not a setting of 't5'"),
        ("data.dir=nowhere", "nowhere"),
        ("data.partition=nowhere.json", "'nowhere.json'"),
        ("data.samples=[7]", "7"),
    ],
)
def test_wrong_settings(fails, config, override, message):
    assert message in fails(override)
    assert nothing_written(config)
