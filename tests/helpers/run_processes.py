"""Processes that work together, as those of a distributed training do."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def run_processes(work: Callable[..., None], *arguments: Any, n_processes: int = 2) -> None:
    """Run ``work(rank, *arguments)`` in processes of their own; raise what one of them raises."""
    # Copies of one that has imported the libraries, which would take each of them ten seconds.
    multiprocessing.set_forkserver_preload(["pytorch_lightning", "transformers"])
    mp.start_processes(work, arguments, n_processes, start_method="forkserver")
