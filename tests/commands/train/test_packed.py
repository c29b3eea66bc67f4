"""The training command with batches by tokens and with packed rows."""

from pathlib import Path

import pytest
import torch

from helpers.command import column, start, train
from helpers.gyms import TINY_LLAMA, write_config, write_gym
from mttl.checkpoints.run_folder import RunFolder
from mttl.config.load import load_config
from mttl.io.errors import ConfigError

PACKED = "data.packed_length=96"
SHORT = ("data.evaluate=[]", "router.relaxed=false")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    return write_config(
        folder / "tiny.yaml", write_gym(folder / "gym", lengths=(1, 6)), backbone=TINY_LLAMA
    )


def test_packed_rows_train_as_padded_ones_do(config: Path) -> None:
    """The same rows in the same steps; sums are taken in another order, 1e-7 relative a step."""
    plain, packed = train(config, "plain", *SHORT), train(config, "packed", *SHORT, PACKED)
    for name in ("train/loss", "val/loss"):
        expected = column(plain.metrics, name)
        assert len(expected) == (12 if name == "train/loss" else 3)
        assert column(packed.metrics, name) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_train_by_tokens_and_go_on(config: Path) -> None:
    """Each takes its own batch of every step; a run in halves ends with the bits of a whole one."""
    budget = (*SHORT, PACKED, "data.token_budget=192", "data.batch_size=99")
    budget += ("trainer.devices=2", "trainer.strategy=ddp", "data.length_window=2")
    budget += ("optim.schedule=constant", "optim.warmup=0", "data.validation=none")

    def run(name: str, steps: int, resume: bool = False) -> dict[str, torch.Tensor]:
        process = start(
            config,
            name,
            *budget,
            f"trainer.max_steps={steps}",
            "trainer.val_check_interval=null",
            resume=resume,
        )
        _, said = process.communicate(timeout=500)
        assert process.returncode == 0, said
        last = RunFolder(config.parent / "runs" / name).last
        return torch.load(last, weights_only=True)["state_dict"]

    run("halves", 5)
    found, expected = run("halves", 11, resume=True), run("whole", 11)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sharded_training_packs_as_copies_do(config: Path) -> None:
    """Tensors that are put together from parts are the same ones: only sums differ, by rounding."""
    curves = []
    for strategy in ("ddp", "fsdp2"):
        steps = ("trainer.max_steps=4", "trainer.val_check_interval=null", "data.validation=none")
        two = ("trainer.devices=2", f"trainer.strategy={strategy}")
        process = start(config, f"packed-{strategy}", *SHORT, PACKED, *steps, *two)
        _, said = process.communicate(timeout=400)
        assert process.returncode == 0, said
        run = RunFolder(config.parent / "runs" / f"packed-{strategy}")
        curves.append(column(run.metrics, "train/loss"))
    assert len(curves[0]) == 4
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


def test_experts_are_refused(config: Path) -> None:
    with pytest.raises(ConfigError, match="does not work with section moe"):
        load_config(f"{config}+router/token_top2.yaml", [PACKED])
