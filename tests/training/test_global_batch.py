"""`data.global_batch_size`: any number of processes trains the same run."""

from pathlib import Path

import pytest
import torch

from helpers.command import column, start, train
from helpers.gyms import TINY_LLAMA, write_config
from mttl.assembly.trainer import with_shared_batches
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from training.test_ddp import finished

# 48 rows are four steps and one of 8 rows; a process has 10 of a step's rows in 3 batches, or two
# have 5 each, in 2 batches.
SIZES = ("data.global_batch_size=10", "data.batch_size=4", "data.evaluate=[]")
SIZES += ("optim.schedule=constant", "optim.warmup=0")
TWO = ("trainer.devices=2", "trainer.strategy=ddp")


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(still: Path) -> None:
    """Losses differ by the order of additions: 1e-7 a step, which AdamW amplifies to some 1e-5."""
    train(still, "shared", *SIZES, "trainer.max_steps=7")
    process = start(still, "shared", *SIZES, *TWO, resume=True)
    whole = train(still, "whole", *SIZES)
    finished(process)
    shared = type(whole)(whole.path.parent / "shared")
    for name, count in (("train/loss", 12), ("val/loss", 3), ("val/score", 3)):
        expected = column(whole.metrics, name)
        assert len(expected) == count
        assert column(shared.metrics, name) == pytest.approx(expected, rel=1e-4), name
    first, second = (torch.load(run.last, weights_only=False) for run in (shared, whole))
    assert (first["batches_per_step"], second["batches_per_step"]) == (2, 3)
    for name, value in second["state_dict"].items():
        torch.testing.assert_close(first["state_dict"][name], value, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.slow
def test_a_decoder_only_run_is_that_of_one_process(still: Path) -> None:
    """Validation after parts of an epoch; tasks drawn; the last step has a row per process."""
    llama = write_config(
        still.parent / "llama.yaml",
        still.parent / "gym",
        backbone=TINY_LLAMA,
        router={"relaxed": False},
        data={"sampler": {"kind": "uniform"}, "max_rows": 4},
        trainer={"max_steps": -1, "max_epochs": 3, "val_check_interval": 0.5},
    )
    process = start(llama, "llama-two", *SIZES, *TWO)
    one = train(llama, "llama-one", *SIZES)
    finished(process)
    two = type(one)(one.path.parent / "llama-two")
    for name in ("train/loss", "val/loss"):
        expected = column(one.metrics, name)
        assert expected
        assert column(two.metrics, name) == pytest.approx(expected, rel=1e-4), name


def test_a_batch_follows_from_the_processes(still: Path) -> None:
    settings = load_config(str(still), [*SIZES, "data.batch_size=3"])
    own = with_shared_batches(settings)
    assert own.trainer.accumulate_grad_batches == 4
    assert own.data.batch_size == 3
    assert own.trainer.val_check_interval == 4 * 4
    shared = with_shared_batches(load_config(str(still), [*SIZES, *TWO, "trainer.strategy=fsdp2"]))
    assert (shared.trainer.strategy, shared.data.batch_size) == ("fsdp2", 3)
    without = load_config(str(still))
    assert with_shared_batches(without) is without


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([*TWO, 9], r"size \(9\) must be a multiple of 2, the number of processes.*use 8 or 10"),
        ([*TWO, "trainer.num_nodes=4", 6], r"size \(6\) must be a multiple of 8.*use 8, or"),
        (["trainer.accelerator=tpu", 8], "section trainer: "),
    ],
)
def test_what_processes_cannot_share_is_refused(still: Path, settings: list, message: str) -> None:
    *given, size = settings
    with pytest.raises(ConfigError, match=message):
        with_shared_batches(load_config(str(still), [*given, f"data.global_batch_size={size}"]))
