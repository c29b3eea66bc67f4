"""Experts that are shared out among two processes train as those of one process do.

The runs differ by the order in which numbers are added: see `test_ddp.py`.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.command import column, train
from helpers.nodes import train_on_two
from mttl.checkpoints.run_folder import RunFolder

pytestmark = pytest.mark.slow  # two processes, twice

SETTINGS = (
    *("moe.n_experts=4", "moe.balance.global_statistics=true", "trainer.gradient_clip_val=0.05"),
    *("optim.schedule=constant", "optim.warmup=0", "moe.experts.kind=feed_forward"),
)
TWO = (
    *("moe.parallel=true", "trainer.strategy=ddp", "data.batch_size=4"),
    *("trainer.num_nodes=2", "data.eval_batch_size=2"),
)


@pytest.fixture(scope="module")
def config(still: Path) -> str:
    return f"{still}+router/token_top2.yaml+experts/feed_forward.yaml"


@pytest.fixture(scope="module")
def runs(config: str) -> tuple[RunFolder, RunFolder]:
    """One process, and two of which each has half of the experts, stopped in between."""
    one = train(config, "one", *SETTINGS)
    halves = (
        ("two", (*SETTINGS, *TWO, "trainer.max_steps=5"), False),
        ("two", (*SETTINGS, *TWO), True),
    )
    train_on_two("SLURM", config, *halves)
    return one, RunFolder(one.path.parent / "two")


def test_the_loss_curve_is_that_of_one_process(runs: tuple[RunFolder, RunFolder]) -> None:
    one, two = runs
    for name in ("train/loss", "train/switch", "val/loss"):
        expected = column(one.metrics, name)
        found = column(two.metrics, name)
        assert expected
        assert {step: found[step] for step in expected} == pytest.approx(expected, rel=1e-4), name


def test_files_and_checkpoints_are_those_of_one_process(runs: tuple[RunFolder, RunFolder]) -> None:
    for path in ("skills.safetensors", "router.safetensors"):
        expected, found = (load_file(run.skills / path) for run in runs)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    facts = [json.loads((run.skills / "meta.json").read_text()) for run in runs]
    assert facts[0]["settings"] == facts[1]["settings"]
    first, second = (torch.load(run.last, weights_only=False) for run in runs)
    states = [(c["state_dict"], c["optimizer_states"][0]["state"]) for c in (second, first)]
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)


def test_another_number_of_processes_goes_on(config: str, runs: tuple) -> None:
    """One process, which shares nothing; in `runs`, two have begun again as two."""
    same = ("data.batch_size=4", "data.eval_batch_size=2", "trainer.max_steps=14")
    run = train(config, "two", *SETTINGS, *same, resume=True)
    assert torch.load(run.last, weights_only=False)["global_step"] == 14
