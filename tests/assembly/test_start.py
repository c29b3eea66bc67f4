"""Training that starts from the skills of an earlier run."""

from pathlib import Path

import pytest
import torch

from helpers.command import train
from helpers.gyms import write_config, write_gym
from mttl.assembly.model import build_model, load_run
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.config.load import load_any_config, load_config
from mttl.io.errors import ConfigError
from mttl.merging.fold import average_mixing, fold, unfold

SHORT = ("trainer.val_check_interval=2", "data.evaluate=[]")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a router that learned, whose backbone was trained jointly."""
    folder = tmp_path_factory.mktemp("first")
    config = write_config(folder / "tiny.yaml", write_gym(folder / "gym"))
    return train(config, "first", "trainer.max_steps=2", *SHORT).path


def averaged(first: Path, *overrides: str):
    given = [f"run.start={first}", "skills.n_skills=2", *overrides]
    return load_config(f"{first}/config.yaml+router/average.yaml", given)


def test_the_average_of_a_run_is_trained_further(first: Path) -> None:
    """It starts as the average of the run's skills, which folding computes by itself."""
    run, saved = load_run(first), read_inventory(first)
    n_skills = run.model.router.n_skills
    built = build_model(averaged(first, f"skills.n_skills={n_skills}"), run.tasks)
    ids = torch.arange(len(run.tasks))
    rows = {"input_ids": torch.full((len(ids), 4), 70), "labels": torch.full((len(ids), 3), 80)}
    folded = fold(run.model, average_mixing(run.model.router))
    expected = folded.backbone(**rows).logits
    unfold(folded)
    # Another order of sums, in single precision.
    torch.testing.assert_close(
        built.model.eval()(ids, **rows).logits, expected, rtol=1e-4, atol=1e-4
    )
    train(
        first / "config.yaml",
        "again",
        "router.kind=average",
        f"run.start={first}",
        "optim.lr=1e-3",
        "trainer.max_steps=2",
        *SHORT,
    )
    moved = read_inventory(first.parent / "again")
    assert moved.skills.keys() == saved.skills.keys()
    assert not any(torch.equal(moved.skills[name], saved.skills[name]) for name in saved.skills)
    changes = [(moved.skills[name] - one).abs().max() for name, one in saved.skills.items()]
    assert max(changes) < 0.01  # two small steps from there, not a draw


def test_inputs_that_begin_otherwise_are_told(
    first: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, n_skills = read_inventory(first).tasks, load_run(first).model.router.n_skills
    same = averaged(first, f"skills.n_skills={n_skills}")
    build_model(same, tasks)
    assert "data.prefix" not in caplog.text
    other = averaged(first, f"skills.n_skills={n_skills}", "data.prefix=code")
    build_model(other, tasks)
    assert (
        f"have read inputs with data.prefix={same.data.prefix} and go on with code" in caplog.text
    )


def test_what_cannot_start_from_a_run() -> None:
    start = "run.start=runs/first"
    with pytest.raises(
        ConfigError, match=r"run\.start \(.*\) does not work with section moe: a run"
    ):
        load_config("crossfit.yaml+router/token_top2.yaml", [start])
    with pytest.raises(
        ConfigError, match=r"run\.start \(.*\) does not work with aggregation\.kind 'fusion'"
    ):
        load_config(
            "crossfit.yaml+router/average.yaml+aggregation/fusion.yaml",
            [start, "aggregation.source=runs/other"],
        )
    with pytest.raises(ConfigError, match=r"run\.start is for text-to-text tasks: leave it out"):
        load_any_config("babyai.yaml", [start])
