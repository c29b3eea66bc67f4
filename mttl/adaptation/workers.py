"""Processes that share the jobs of an adaptation."""

import os
import subprocess
from collections.abc import Sequence

from mttl.adaptation.shard import Shard
from mttl.errors import MttlError
from mttl.runtime.child_process import with_parent
from mttl.runtime.gpus import gpu_environment


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
