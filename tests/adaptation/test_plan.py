"""Several processes share the jobs."""

import pytest

from mttl.adaptation.few_shot import FewShotJob
from mttl.adaptation.shard import Shard


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7])
def test_parts_share_all_jobs(n_shards: int) -> None:
    jobs = [FewShotJob("a", sample, 13) for sample in range(5)]
    parts = [Shard(number, n_shards).share(jobs) for number in range(1, n_shards + 1)]
    assert sorted((job for part in parts for job in part), key=lambda job: job.sample) == jobs


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
