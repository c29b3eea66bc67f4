"""Two processes on the CPU train as one does, each with a model of its own or sharing one.

Each step's gradient is the mean over all tokens of the global batch, however they are shared out:
answers differ in length, so the processes hold different numbers of tokens. Without noise the two
runs differ by the order in which numbers are added, about 1e-7 relative per step, which a dozen
steps of AdamW amplify to some 1e-5.
"""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.command import arguments, column, read_csv, start, train
from helpers.gyms import TASKS
from helpers.nodes import free_port, torchrun, train_on_two
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import adapt
from mttl.io.torch_file import load_torch

TWO = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=4")
SHARDED = ("trainer.devices=2", "trainer.strategy=fsdp2", "data.batch_size=4")
STRATEGIES = {"ddp": TWO, "fsdp2": SHARDED}


def finished(process: "subprocess.Popen[str]") -> str:
    """Return what a command has printed, once it has ended well."""
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return printed + said


@pytest.fixture(scope="module")
def one(still: Path) -> RunFolder:
    """A run of one process."""
    return train(still, "one")


@pytest.fixture(scope="module", params=["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def two(request: pytest.FixtureRequest, still: Path, one: RunFolder) -> tuple[RunFolder, str]:
    """A run of two processes, and what it said."""
    said = still.parent / f"{request.param}.txt"
    train_on_two("torchrun", still, (request.param, STRATEGIES[request.param], False), said=said)
    return RunFolder(one.path.parent / request.param), said.read_text(encoding="utf-8")


def test_every_row_is_scored_once_and_alike(one: RunFolder, two: tuple[RunFolder, str]) -> None:
    found, said = two
    for once in ("Skills on the backbone", "Scores per task", "step 4: mean score"):
        assert sum(once in line for line in said.splitlines()) == 1  # the second process is quiet
    assert read_csv(found.results) == read_csv(one.results)
    for task in TASKS:
        for split in ("dev", "test"):
            name = f"{task}_{split}.jsonl"
            assert (found.predictions / name).read_text() == (one.predictions / name).read_text()
    for name in ("train/loss", "val/score", "val/loss", *(f"val/{task}/loss" for task in TASKS)):
        expected = column(one.metrics, name)
        assert len(expected) == (12 if name == "train/loss" else 3), name
        assert column(found.metrics, name) == pytest.approx(expected, rel=1e-4), name


def test_the_files_are_those_of_one_process(one: RunFolder, two: tuple[RunFolder, str]) -> None:
    found, _ = two
    assert _files(found.path) == _files(one.path)
    # Steps whose gradients are near zero may differ in sign: hence the absolute part.
    second, first = (load_torch(run.last, "")["state_dict"] for run in (found, one))
    torch.testing.assert_close(second, first, rtol=1e-3, atol=1e-3)
    for name in ("skills", "router", "backbone"):
        first, second = (load_file(run.skills / f"{name}.safetensors") for run in (one, found))
        assert list(first) == list(second)
        torch.testing.assert_close(second, first, rtol=1e-3, atol=1e-3)
    metas = [json.loads((run.skills / "meta.json").read_text()) for run in (one, found)]
    sums = [meta.pop("sha256") for meta in metas]
    assert sums[0].keys() == sums[1].keys()
    assert metas[0] == metas[1]
    for name in ("routing", "routing_history"):
        first, second = (np.load(run.plots / f"{name}.npz") for run in (one, found))
        for key in ("weights", "probabilities") if name == "routing" else ("weights",):
            np.testing.assert_allclose(second[key], first[key], atol=1e-3)


def _files(folder: Path) -> list[str]:
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(path for path in paths if not path.startswith("."))


@pytest.mark.slow
@pytest.mark.parametrize("two", ["ddp"], indirect=True)
def test_whoever_starts_the_processes_they_train_the_same(still, two) -> None:
    """Lightning, and two machines under torchrun: to the last bit, as it is the same work."""
    finished(start(still, "started", *TWO))
    given = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32-true"]
    command = arguments(f"{still}+trainer/nodes.yaml", "nodes", (*given, TWO[2]), False)
    meeting = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
    port = f"--master-port={free_port()}"
    machines = [torchrun(*meeting, port, f"--node-rank={n}", given=command) for n in (0, 1)]
    said = [machine.communicate(timeout=250)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert sum("Scores per task" in line for text in said for line in text.splitlines()) == 1
    expected = two[0]
    for found in (RunFolder(expected.path.parent / name) for name in ("started", "nodes")):
        assert found.metrics.read_text() == expected.metrics.read_text()
        assert found.results.read_text() == expected.results.read_text()
        for path in ("skills.safetensors", "router.safetensors", "backbone.safetensors"):
            assert (found.skills / path).read_bytes() == (expected.skills / path).read_bytes()


@pytest.mark.slow
def test_skills_on_those_of_another_run_train_as_in_one_process(still, one) -> None:
    settings = (f"skills.on=['{one.path}:copy']", "backbone.train=false", "data.evaluate=[]")
    process = start(still, "on-two", *TWO, *settings)
    alone = train(still, "on-one", *settings)
    finished(process)
    together = RunFolder(alone.path.parent / "on-two")
    expected = column(alone.metrics, "train/loss")
    assert len(expected) == 12
    assert column(together.metrics, "train/loss") == pytest.approx(expected, rel=1e-4)
    found, trained = (load_torch(run.last, "")["state_dict"] for run in (together, alone))
    torch.testing.assert_close(found, trained, rtol=1e-3, atol=1e-3)
    assert (
        load_file(together.skills / "skills.safetensors").keys()
        == load_file(one.skills / "skills.safetensors").keys()
    )  # of its own skills alone


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_both_processes_stop_together_and_continue(still, strategy, number) -> None:
    settings, name = STRATEGIES[strategy], f"stopped-{strategy}-{number.name}"
    process = start(still, name, *settings, "trainer.max_steps=4000")
    assert process.stderr is not None
    for line in process.stderr:
        if "mean score" in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=300)
    assert process.returncode == (1 if number == signal.SIGTERM else 130), rest
    assert "the state was saved; continue with --resume" in rest
    stopped = RunFolder(still.parent / "runs" / name)
    step = torch.load(stopped.last, weights_only=False)["global_step"]
    finished(start(still, name, *settings, f"trainer.max_steps={step + 4}", resume=True))
    assert torch.load(stopped.last, weights_only=False)["global_step"] == step + 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_run_is_the_undisturbed_one_to_the_last_bit(still: Path, strategy: str) -> None:
    """With noise of every kind: each process goes on in its own stream of random numbers."""
    # The learning rate must not depend on where the run is meant to end.
    settings = [*STRATEGIES[strategy], "optim.schedule=constant", "optim.warmup=0"]
    settings += ["backbone.config.dropout_rate=0.2", "router.relaxed=true", "data.evaluate=[dev]"]

    def run(name: str, steps: int, resume: bool = False) -> dict[str, Any]:
        name = f"{name}-{strategy}"
        finished(start(still, name, *settings, f"trainer.max_steps={steps}", resume=resume))
        return torch.load(still.parent / "runs" / name / "checkpoints" / "last.ckpt")

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
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["token_loss_free", "token_top2"])
def test_experts_are_balanced_by_the_loads_of_both(still: Path, kind: str, strategy: str) -> None:
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
    recipe = f"{still}+router/{kind}.yaml"
    process = start(recipe, f"{strategy}-{kind}", *STRATEGIES[strategy], *settings)
    one = train(recipe, f"one-{strategy}-{kind}", *settings)
    finished(process)
    two = RunFolder(one.path.parent / f"{strategy}-{kind}")
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_with_another_strategy_and_serves_what_reads_runs(still: Path) -> None:
    """The checkpoint and ``skills/`` are those of any run: whatever reads them need not know."""
    # Fifteen rows for two processes, one by one: the last batch of one process has no row.
    # A step has as many rows whoever computes it.
    single = ("data.global_batch_size=8", "data.eval_batch_size=1")
    process = start(still, "killed", *SHARDED, *single, "trainer.max_steps=4000")
    killed = RunFolder(still.parent / "runs" / "killed")
    assert process.stderr is not None
    for line in process.stderr:
        if "mean score" in line and killed.last.is_file():  # of an earlier validation
            break
    process.kill()
    process.communicate(timeout=300)  # the second process leaves when it finds itself alone
    step = load_torch(killed.last, "")["global_step"]
    alone = ("trainer.devices=1", "data.batch_size=4")
    for more, settings in enumerate((SHARDED, TWO, alone), start=1):
        end = f"trainer.max_steps={step + 2 * more}"
        finished(start(still, "killed", *settings, *single, end, resume=True))
        assert load_torch(killed.last, "")["global_step"] == step + 2 * more


@pytest.mark.slow
@pytest.mark.parametrize("two", ["fsdp2"], indirect=True)
def test_a_sharded_run_is_adapted_as_any(still: Path, two: tuple[RunFolder, str]) -> None:
    run = two[0].path
    given = ["-c", str(still), "--from", str(run), "--tasks", "copy", "--allow-seen"]
    given += ["-k", "adapt.max_steps=2", "adapt.eval_every=1", "adapt.batch_size=4"]
    assert adapt.main(given) == 0
    assert (run / "adapt-all" / "results.jsonl").read_text()
