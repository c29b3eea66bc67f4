"""What processes that watch one another do in tests."""

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist

from mttl.runtime.child_process import end_process
from mttl.training.distributed import peer_watchdog_links as links
from mttl.training.distributed.peer_watchdog_links import ENDED, FAILED, Watch, meet


def work(rank: int, folder: str, case: str, lost: int, n_processes: int) -> None:
    """Meet; one process is lost, fails or ends, and the others wait for something else."""
    os.dup2(os.open(f"{folder}/{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=n_processes)
    links.GRACE = 1.0
    found, problem = meet(rank, n_processes, "localhost")
    assert not problem, problem
    assert len(found) == (n_processes - 1 if rank == 0 else 1)
    watch = Watch(found, end_process)
    watch.start()
    dist.barrier()
    Path(folder, f"{rank}.pid").write_text(str(os.getpid()))
    if rank != lost:
        # The first process ends last: it must not take the end of another for a loss.
        time.sleep((4.0 if rank == 0 else 3.0) if case == ENDED else 250.0)
        watch.leave(ENDED)
        os._exit(0)
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    watch.leave(ENDED if case == ENDED else FAILED)
    os._exit(7)
