"""Parts of the jobs of an adaptation, and processes that share them; none is started here."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mttl.adaptation import shard as workers
from mttl.adaptation.plan import FewShotJob
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


@pytest.mark.parametrize(("status", "raised"), [(2, False), (1, True), (-9, True)])
def test_jobs_that_a_worker_reports_are_left_to_the_caller(monkeypatch, status, raised):
    """So that what others finished is shown, and written, where some diverged."""
    ended = SimpleNamespace(wait=lambda: status, terminate=lambda: None)
    started = SimpleNamespace(Popen=lambda command, **more: ended, DEVNULL=None)
    monkeypatch.setattr(workers, "subprocess", started)
    with pytest.raises(MttlError, match="worker 1, 2 of 2") if raised else nullcontext():
        workers.start_workers(2, Shard(), ["adapt"])


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_workers_of_parts_share_all_jobs(n_shards: int, n_workers: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(7)]
    for number in range(1, n_shards + 1):
        part = Shard(number, n_shards)
        workers = [part.part(worker, n_workers).share(jobs) for worker in range(1, n_workers + 1)]
        shared = sorted((job for jobs in workers for job in jobs), key=lambda job: job.sample)
        assert shared == part.share(jobs)
    assert Shard().part(2, 3) == Shard(2, 3)
