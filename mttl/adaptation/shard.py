"""Parts of the jobs of an adaptation, and processes that share them."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mttl.io.errors import MttlError, TaskError
from mttl.runtime.child_process import with_parent
from mttl.runtime.processes import gpu_environment

Job = TypeVar("Job")


@dataclass(frozen=True)
class Shard:
    """One part of several that share the jobs; parts are numbered from 1."""

    number: int = 1
    n_shards: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.n_shards:
            raise TaskError(
                f"shard {self.number}/{self.n_shards}: the first number must lie between 1 and "
                "the second"
            )

    def share(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of this part."""
        return list(jobs[self.number - 1 :: self.n_shards])

    def part(self, number: int, n_parts: int) -> "Shard":
        """Return a part of this part."""
        return Shard(self.number + (number - 1) * self.n_shards, n_parts * self.n_shards)

    @property
    def file(self) -> str:
        """The name of the file that this part writes."""
        part = f"-{self.number}-of-{self.n_shards}" if self.n_shards > 1 else ""
        return f"results{part}.jsonl"


def start_workers(n_workers: int, shard: Shard, command: Sequence[str]) -> None:
    """Share the jobs among processes of a command, one GPU each, and wait for them.

    Raises:
        MttlError: If one of them broke off; what the others finished is kept. Jobs that one has
            reported as failed, such as those that diverged, are left to the caller.
    """
    threads = str(max(1, (os.cpu_count() or 1) // n_workers))
    parts = [shard.part(number, n_workers) for number in range(1, n_workers + 1)]
    workers = [
        subprocess.Popen(
            [*command, "--workers", "1", "--shard", f"{part.number}/{part.n_shards}"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads, **gpu_environment(number)},
            preexec_fn=with_parent(),
        )
        for number, part in enumerate(parts, start=1)
    ]
    try:
        failed = [number for number, worker in enumerate(workers, 1) if worker.wait() not in (0, 2)]
    finally:
        for worker in workers:
            worker.terminate()
    if failed:
        raise MttlError(
            f"worker {', '.join(map(str, failed))} of {n_workers} failed; its message is above. "
            "Start again to run what is left"
        )
