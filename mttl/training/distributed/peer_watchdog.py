"""The processes of a training end together: where one is killed, the others do not wait for it.

Collectives do not tell in time: gloo says so in the next one, NCCL waits for minutes, and a process
that works alone hears nothing. So processes watch one another (`peer_watchdog_links`).
"""

import atexit
import os
import time
from typing import Any

import pytorch_lightning as pl
from lightning_utilities.core.rank_zero import rank_zero_warn
from pytorch_lightning.callbacks import Callback

from mttl.errors import MttlError
from mttl.runtime.child_process import end_process, forget_launcher, note_launcher
from mttl.training.distributed.peer_watchdog_links import ENDED, FAILED, Watch, meet

# What NCCL does by itself, beside this: a collective that fails or runs out of time ends the
# process instead of waiting on, and so does a watchdog that hangs. Who has set one keeps it.
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120",
}
VERDICT = 3.0  # seconds that a failed collective waits for the name of who is lost


class PeerWatchdog(Callback):
    """Ends this process with a message and status 1 once another one of the training is lost."""

    def __init__(self) -> None:
        for name, value in NCCL.items():
            os.environ.setdefault(name, value)
        self._watch: Watch | None = None
        if "LOCAL_RANK" not in os.environ:  # Lightning may start others
            note_launcher()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Meet the others, once."""
        if trainer.world_size == 1 or self._watch is not None:
            return
        environment: Any = trainer.strategy.cluster_environment  # type: ignore[attr-defined]
        host = environment.main_address if trainer.num_nodes > 1 else "127.0.0.1"
        links, problem = meet(trainer.global_rank, trainer.world_size, host)
        if problem:
            rank_zero_warn(
                f"the processes of this training cannot watch one another ({problem}): where one "
                "is killed, the others notice in the next collective, or when that has timed out. "
                "Let the machines connect on any port"
            )
        forget_launcher()
        self._watch = Watch(links, end_process)
        self._watch.start()
        atexit.register(self._watch.leave, FAILED)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the word to the watch where a collective fails, which knows who is lost."""
        fails = isinstance(exception, RuntimeError) and not isinstance(exception, MttlError)
        if self._watch is not None and fails:
            time.sleep(VERDICT)

    def leave(self) -> None:
        """Take leave: from here on, this process needs no other."""
        if self._watch is not None:
            self._watch.leave(ENDED)


def take_leave(trainer: pl.Trainer) -> None:
    """Say at the end of a training that the others need not wait for this process."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, PeerWatchdog):
            callback.leave()
