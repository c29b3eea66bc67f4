"""Processes of one training as a launcher on each machine starts them, without the launcher.

Copies of a process that has imported the libraries take its environment: that saves ten seconds.
"""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from lightning_fabric.utilities.rank_zero import rank_zero_only

from helpers.command import RECIPE, ROOT, arguments, load_recipe


def run_processes(work: Callable[..., None], *arguments: Any, n_processes: int = 2) -> None:
    """Run ``work(rank, *arguments)`` in processes of their own; raise what one of them raises."""
    # Copies of one that has imported the libraries, which would take each of them ten seconds.
    multiprocessing.set_forkserver_preload(["pytorch_lightning", "transformers"])
    mp.start_processes(work, arguments, n_processes, start_method="forkserver")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def torchrun(*options: str, given: Sequence[str], **more: str) -> "subprocess.Popen[str]":
    """Start the training command under torchrun."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, str(RECIPE), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more},
    )


def environment(launcher: str, rank: int, port: int) -> dict[str, str]:
    """Return what torchrun tells one process of two on a machine, or SLURM one on two of them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if launcher == "torchrun":
        return meeting | {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
            **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"},
        }
    return meeting | {
        **{"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "localhost"},
        **{"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2"},
        **{"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)},
    }


def work(
    rank: int, launcher: str, port: int, given: Sequence[Sequence[str]], said: Path | None
) -> None:
    if said is not None:
        with said.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    os.environ |= environment(launcher, rank, port)
    rank_zero_only.rank = rank  # as in a process that imports it in this environment
    for command in given:
        assert load_recipe().main([*command]) == 0


def train_on_two(
    launcher: str,
    config: Path | str,
    *runs: tuple[str, tuple[str, ...], bool],
    said: Path | None = None,
) -> None:
    """Train one run after another in two processes."""
    given = [arguments(config, name, overrides, resume) for name, overrides, resume in runs]
    run_processes(work, launcher, free_port(), given, said)
