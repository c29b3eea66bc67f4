"""The training command where tokens choose experts: stopping and resuming, and its figures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.command import train
from helpers.gyms import write_config, write_gym
from helpers.interruption import assert_same_run, interrupted
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import explore, plot

# The fragments of `configs/router` at the size of the tiny model. Records come every third step, so
# that a stop falls between two of them.
SMALL = (
    *("moe.n_experts=3", "moe.experts.rank=2", "moe.targets=[mlp]"),
    *("moe.router.jitter=0.1", "trainer.log_every_n_steps=3"),
)
BIAS_RATE = 0.01
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    return write_config(folder / "tiny.yaml", write_gym(folder / "gym"))


def recipe(config: Path, kind: str) -> str:
    return f"{config}+router/{kind}.yaml"


def settings(kind: str, *more: str) -> tuple[str, ...]:
    rate = (f"moe.balance.bias={BIAS_RATE}",) if kind == "token_loss_free" else ()
    return (*SMALL, *rate, *more)


@pytest.fixture(scope="module")
def wholes(config: Path) -> dict[str, RunFolder]:
    """Runs that nothing interrupted."""
    return {
        kind: train(recipe(config, kind), f"whole-{kind}", *settings(kind))
        for kind in ("token_top2", "token_loss_free")
    }


def biases(run: RunFolder) -> dict[str, Tensor]:
    state = torch.load(run.last, weights_only=False)["state_dict"]
    return {name: value for name, value in state.items() if name.endswith("router.bias.value")}


# Stopped between two records; where a record and an epoch end; and in the last step.
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["token_loss_free", pytest.param("token_top2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "step", [4, *(pytest.param(step, marks=pytest.mark.slow) for step in (5, 11))]
)
def test_a_run_continues_as_if_it_had_never_stopped(config, wholes, monkeypatch, kind, step):
    name, files = f"stopped-{kind}-{step}", recipe(config, kind)
    with interrupted(step, monkeypatch, "mttl.commands.train_tasks.build_trainer"):
        train(files, name, *settings(kind))
    assert_same_run(train(files, name, *settings(kind), resume=True), wholes[kind])


def test_what_was_compared_holds_biases_and_statistics(wholes: dict[str, RunFolder]) -> None:
    found = biases(wholes["token_loss_free"])
    assert found
    assert all(value.any() for value in found.values())
    assert not biases(wholes["token_top2"])
    for run in wholes.values():
        history = np.load(run.plots / "token_history.npz")
        assert history["steps"].tolist() == [3, 6, 9, 12]
        np.testing.assert_allclose(history["load"].sum(-1), 1, rtol=1e-6)


@pytest.fixture(scope="module")
def hybrid(config: Path) -> RunFolder:
    """Tasks choose skills in attention, tokens experts in the rest."""
    more = ("skills.n_skills=3", "skills.rank=2", "trainer.max_steps=6")
    return train(recipe(config, "token_hybrid"), "hybrid", *settings("token_hybrid", *more))


@pytest.mark.slow
def test_the_figures_of_a_hybrid_show_both(hybrid, monkeypatch, capsys) -> None:
    found, printed = drawn(hybrid, monkeypatch, capsys)
    assert {"heat_map.png", "tokens_heat_map.png", "statistics_over_training.png"} <= found
    assert "tokens_over_training.png" in found
    assert "SelfAttention.q" in printed
    assert "Expert choice of tokens" in printed
    assert explore.main([str(hybrid.path)]) == 0
    page = (hybrid.plots / "explore.html").read_text()
    assert "encoder.block.0.layer.0.SelfAttention.q" in page
    assert "encoder.block.0.layer.1.DenseReluDense.wi" in page


def drawn(run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> tuple[set[str], str]:
    """Draw a run; return the files and what was printed."""
    monkeypatch.setenv("COLUMNS", "160")
    capsys.readouterr()
    assert plot.main([str(run.path), "--all"]) == 0
    return {path.name for path in run.plots.iterdir()}, capsys.readouterr().out
