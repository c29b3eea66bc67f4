"""Mistakes of a user of the command: a clean message, status 2, nothing written, nothing lost."""

from pathlib import Path

import pytest

from helpers.command import arguments, load_recipe
from helpers.gyms import TASKS, write_config, write_gym

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

    def run(*overrides: str) -> str:
        message = refused(load_recipe().main, *arguments(config, "run", overrides, False))
        assert not (config.parent / "runs" / "run" / "skills").exists()
        return message

    return run


def nothing_written(config: Path) -> bool:
    return not (config.parent / "runs" / "run").exists()


TRAIN, TEST = f"{NAMES[1]}/*_train.tsv", f"{NAMES[0]}/*_test.tsv"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (TRAIN, "", "empty"),
        # What is scored in the end is read before training.
        (TEST, "no tab\n", "line 1: no tab between input and output"),
        (TEST, None, "has no test file for sample"),
        ("TASKS.csv", "task,metric\ncopy,Exact\n", "('Exact') must be one of"),
    ],
)
def test_a_file_of_the_gym(fails, config, gym, file, text, message):
    path = next(gym.glob(file))
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert message in fails()
    assert nothing_written(config)


def test_an_existing_run_is_never_overwritten(fails, config, tmp_path):
    earlier = tmp_path / "runs" / "run" / "results.csv"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("precious")
    assert "already exists. Continue the run with --resume" in fails()
    assert earlier.read_text() == "precious"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ('data.partition={"train":[copy,revers]}', "skip_missing"),
        ("backbone.kind=pretrained backbone.name=nobody/nothing", "hf download nobody/nothing"),
        ("skills.targets=[q_prj]", "the target 'q_prj' matches no linear layer"),
        ("data.samples=[7]", "7"),
        ("data.packed_length=96", "data.packed_length (96) needs a decoder-only backbone; use"),
        ("trainer.max_steps=-1 trainer.max_time=00:00:00:05", "max_steps or max_epochs must be"),
    ],
)
def test_wrong_settings(fails, config, overrides, message):
    assert message in fails(*overrides.split())
    assert nothing_written(config)
