"""Processes that watch one another; nothing is trained here."""

import multiprocessing
import time
from pathlib import Path

import pytest
import torch.multiprocessing as mp

from helpers import watched_process
from mttl.training.distributed.peer_watchdog_links import ENDED, FAILED, GONE, WENT_WRONG

N = 3


@pytest.mark.parametrize(
    ("case", "lost"), [("killed", 0), ("killed", 2), (FAILED, 1), (ENDED, 1), (ENDED, 0)]
)
def test_where_one_is_lost_the_others_end(tmp_path: Path, case: str, lost: int) -> None:
    multiprocessing.set_forkserver_preload(["pytorch_lightning", "transformers"])
    begun = time.monotonic()
    context = mp.start_processes(
        *(watched_process.work, (str(tmp_path), case, lost, N), N),
        **{"join": False, "start_method": "forkserver"},
    )
    for process in context.processes:
        process.join(200)
    assert time.monotonic() - begun < 200  # the others would sleep for longer
    others = [rank for rank in range(N) if rank != lost]
    statuses = [context.processes[rank].exitcode for rank in others]
    said = [(tmp_path / f"{rank}.txt").read_text().splitlines() for rank in others]
    said = [[line for line in lines if line.startswith("error")] for lines in said]
    if case == ENDED:
        assert (statuses, said) == ([0, 0], [[], []])
        return
    assert statuses == [1, 1]
    name = f"process {lost} of {N} ({(tmp_path / f'{lost}.pid').read_text()} on "
    for lines in said:
        assert len(lines) == 1, lines
        assert name in lines[0]
        assert (GONE if case == "killed" else WENT_WRONG) in lines[0]
        assert "Continue the run with --resume" in lines[0]
