"""Processes that share the jobs of an adaptation; none is started here."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mttl.adaptation import shard as workers
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.shard import Shard
from mttl.io.errors import MttlError


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("shard", [Shard(), Shard(2, 2)])
def test_each_worker_is_shown_a_gpu_of_its_own(monkeypatch, shard):
    started = []

    def start(command, *, env, **more):
        started.append((command[-1], env.get("CUDA_VISIBLE_DEVICES")))
        return SimpleNamespace(wait=lambda: 0, terminate=lambda: None)

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    workers.start_workers(3, shard, ["adapt"])
    parts = [shard.part(number, 3) for number in (1, 2, 3)]
    # By the number of the worker, not of the part: the second of two parts would take one GPU only.
    assert started == [
        (f"{part.number}/{part.n_shards}", gpu)
        for part, gpu in zip(parts, ("0", "1", "0"), strict=True)
    ]


@pytest.mark.usefixtures("two_gpus")
def test_parts_that_are_started_by_hand_take_gpus_in_turn():
    moved = []
    adaptation = SimpleNamespace(run=SimpleNamespace(model=SimpleNamespace(to=moved.append)))
    for number in (1, 2, 3):
        Adaptation.to_device(adaptation, number)
    assert moved == [torch.device("cuda", index) for index in (0, 1, 0)]


@pytest.mark.parametrize(("status", "raised"), [(2, False), (1, True), (-9, True)])
def test_jobs_that_a_worker_reports_are_left_to_the_caller(monkeypatch, status, raised):
    """So that what others finished is shown, and written, where some diverged."""
    ended = SimpleNamespace(wait=lambda: status, terminate=lambda: None)
    started = SimpleNamespace(Popen=lambda command, **more: ended, DEVNULL=None)
    monkeypatch.setattr(workers, "subprocess", started)
    with pytest.raises(MttlError, match="worker 1, 2 of 2") if raised else nullcontext():
        workers.start_workers(2, Shard(), ["adapt"])
