"""Two processes on the CPU train as one does.

Each step's gradient is the mean over all tokens of the global batch, however they are shared out:
answers differ in length, so the processes hold different numbers of tokens. Without noise the two
runs differ by the order in which numbers are added, about 1e-7 relative per step, which a dozen
steps of AdamW amplify to some 1e-5.
"""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.command import arguments, column, read_csv, start, train
from helpers.gyms import TASKS, write_config, write_gym
from helpers.nodes import free_port, torchrun, train_on_two
from mttl.training.run_folder import RunFolder

TWO = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=4")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    return write_config(
        folder / "tiny.yaml",
        write_gym(folder / "gym", lengths=(1, 6)),
        backbone={"config": {**_still()}},
        router={"relaxed": False},
    )


def _still() -> dict[str, object]:
    return {
        **{"vocab_size": 384, "d_model": 16, "d_kv": 4, "num_heads": 2, "d_ff": 32},
        **{"num_layers": 1, "num_decoder_layers": 1, "dropout_rate": 0.0},
    }


@pytest.fixture(scope="module")
def runs(config: Path) -> tuple[RunFolder, RunFolder, str]:
    """One process, two processes, and what the two said."""
    process = start(config, "two", *TWO)
    one = train(config, "one")
    printed, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return one, RunFolder(one.path.parent / "two"), printed + said


def test_the_loss_curve_is_that_of_one_process(runs: tuple[RunFolder, RunFolder, str]) -> None:
    one, two, _ = runs
    expected = column(one.metrics, "train/loss")
    found = column(two.metrics, "train/loss")
    assert len(expected) == 12
    assert found == pytest.approx(expected, rel=1e-4)


def test_every_row_is_scored_once_and_alike(runs: tuple[RunFolder, RunFolder, str]) -> None:
    one, two, _ = runs
    assert read_csv(two.results) == read_csv(one.results)
    for task in TASKS:
        for split in ("dev", "test"):
            name = f"{task}_{split}.jsonl"
            assert (two.predictions / name).read_text() == (one.predictions / name).read_text()
    for name in ("val/score", "val/loss", *(f"val/{task}/loss" for task in TASKS)):
        expected = column(one.metrics, name)
        assert len(expected) == 3, name
        assert column(two.metrics, name) == pytest.approx(expected, rel=1e-4), name


def test_the_weights_agree(runs: tuple[RunFolder, RunFolder, str]) -> None:
    one, two, _ = runs
    first, second = (torch.load(run.last, weights_only=False)["state_dict"] for run in (one, two))
    assert first.keys() == second.keys()
    for name, value in first.items():
        # Steps whose gradients are near zero may differ in sign: hence the absolute part.
        torch.testing.assert_close(second[name], value, rtol=1e-3, atol=1e-3, msg=name)


def test_the_second_process_is_quiet(runs: tuple[RunFolder, RunFolder, str]) -> None:
    _, _, said = runs
    lines = said.splitlines()
    assert sum("Skills on the backbone" in line for line in lines) == 1
    assert sum("Scores per task" in line for line in lines) == 1
    assert sum("step 4: mean score" in line for line in lines) == 1


def assert_same(found: RunFolder, expected: RunFolder) -> None:
    """To the last bit: it is the same work, whoever has started the processes."""
    assert found.metrics.read_text() == expected.metrics.read_text()
    assert found.results.read_text() == expected.results.read_text()
    for path in ("skills.safetensors", "router.safetensors", "backbone.safetensors"):
        assert (found.skills / path).read_bytes() == (expected.skills / path).read_bytes()


def test_processes_that_torchrun_describes_train_the_same(config: Path, runs: tuple) -> None:
    train_on_two("torchrun", config, ("described", TWO, False))
    assert_same(RunFolder(runs[1].path.parent / "described"), runs[1])


@pytest.mark.slow
def test_two_machines_under_torchrun_train_the_same(config: Path, runs: tuple) -> None:
    given = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32-true"]
    command = arguments(f"{config}+trainer/nodes.yaml", "nodes", (*given, TWO[2]), False)
    meeting = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
    port = f"--master-port={free_port()}"
    machines = [torchrun(*meeting, port, f"--node-rank={n}", given=command) for n in (0, 1)]
    said = [machine.communicate(timeout=250)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert_same(RunFolder(runs[1].path.parent / "nodes"), runs[1])
    assert sum("Scores per task" in line for text in said for line in text.splitlines()) == 1


@pytest.mark.slow
def test_both_processes_stop_together_and_continue(config: Path, runs: tuple) -> None:
    process = start(config, "stopped", *TWO, "trainer.max_steps=4000")
    assert process.stderr is not None
    for line in process.stderr:
        if "mean score" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=100)
    assert process.returncode == 1, rest
    assert "the state was saved, continue with --resume" in rest
    stopped = RunFolder(runs[0].path.parent / "stopped")
    step = torch.load(stopped.last, weights_only=False)["global_step"]
    resumed = start(config, "stopped", *TWO, f"trainer.max_steps={step + 4}", resume=True)
    _, rest = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, rest
    assert torch.load(stopped.last, weights_only=False)["global_step"] == step + 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_is_the_undisturbed_one_to_the_last_bit(config: Path) -> None:
    """With noise of every kind: each process goes on in its own stream of random numbers."""
    # The learning rate must not depend on where the run is meant to end.
    settings = [*TWO, "optim.schedule=constant", "optim.warmup=0", "router.relaxed=true"]
    settings += ["backbone.config.dropout_rate=0.2", "data.evaluate=[dev]"]

    def run(name: str, steps: int, resume: bool = False) -> dict[str, Any]:
        process = start(config, name, *settings, f"trainer.max_steps={steps}", resume=resume)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return torch.load(config.parent / "runs" / name / "checkpoints" / "last.ckpt")

    run("halves", 4)
    found, expected = run("halves", 8, resume=True), run("whole", 8)
    compared = [
        [part["state_dict"], part["optimizer_states"][0]["state"], part["random_states"]]
        for part in (found, expected)
    ]
    torch.testing.assert_close(*compared, rtol=0, atol=0)
    first, second = (state["random_state"] for state in expected["random_states"])
    assert not torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["token_loss_free", "token_top2"])
def test_experts_are_balanced_by_the_loads_of_both(config: Path, kind: str) -> None:
    """Biases move by counts, so they are equal; losses over all tokens differ by rounding.

    There are many experts, so that the signs of one process's loads would not do for all of them.
    After an odd number of steps a bias is not 0 unless loads were even.
    """
    settings = ["trainer.max_steps=3", "data.evaluate=[dev]"]
    settings += ["moe.n_experts=8", "moe.experts.rank=2", "moe.targets=[attention,mlp]"]
    if kind == "token_loss_free":
        # Records of two steps each: the sums of monitor and balancing must not mix.
        settings += ["moe.balance.bias=0.01", "trainer.log_every_n_steps=2"]
    else:
        settings.append("moe.balance.global_statistics=true")
    # The settings of the task router and its skills are replaced by the fragment's.
    recipe = f"{config}+router/{kind}.yaml"
    process = start(recipe, f"two-{kind}", *TWO, *settings)
    one = train(recipe, f"one-{kind}", *settings)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    two = RunFolder(one.path.parent / f"two-{kind}")
    ours, theirs = (torch.load(run.last, weights_only=False)["state_dict"] for run in (two, one))
    biases = [name for name in theirs if name.endswith("router.bias.value")]
    assert bool(biases) == (kind == "token_loss_free")
    for name in biases:
        assert theirs[name].any()
        assert torch.equal(ours[name], theirs[name]), name
    first, second = (np.load(run.plots / "token_history.npz") for run in (two, one))
    assert first["steps"].tolist() == second["steps"].tolist()
    np.testing.assert_array_equal(first["load"], second["load"])
    if kind == "token_top2":
        for name in ("train/switch", "train/z"):
            expected = column(one.metrics, name)
            assert len(expected) == 3
            assert column(two.metrics, name) == pytest.approx(expected, rel=1e-5), name
