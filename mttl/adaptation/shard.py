"""Shards of adaptation jobs, and the processes that run them."""

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
    """One of several shards of the jobs, numbered from 1."""

    number: int = 1
    n_shards: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.n_shards:
            raise TaskError(
                f"shard {self.number}/{self.n_shards}: the first number must be from 1 to the other"
            )

    def share(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of this shard."""
        return list(jobs[self.number - 1 :: self.n_shards])

    def part(self, number: int, n_parts: int) -> "Shard":
        """Return a sub-shard of this shard."""
        return Shard(self.number + (number - 1) * self.n_shards, n_parts * self.n_shards)

    @property
    def file(self) -> str:
        """Name of this shard's results file."""
        part = f"-{self.number}-of-{self.n_shards}" if self.n_shards > 1 else ""
        return f"results{part}.jsonl"


def start_workers(n_workers: int, shard: Shard, command: Sequence[str]) -> None:
    """Run a command in several processes that share the jobs, one GPU each, and wait.

    Raises an `MttlError` if a process failed; finished jobs are kept. Failed jobs, such as diverged
    ones, are left to the caller.
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
            f"worker {', '.join(map(str, failed))} of {n_workers} failed; see its message above. "
            "Repeat the command to run the remaining jobs"
        )
