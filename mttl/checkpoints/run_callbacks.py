"""Atomic checkpoints, callbacks that save a run, and the lock on its folder."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from socket import gethostname
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, Checkpoint

from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.whole_tensors import whole
from mttl.io.errors import ConfigError, DivergedError
from mttl.io.files import atomic_path, locked
from mttl.io.reading import read_text
from mttl.runtime.processes import gathered

PATIENCE = 10.0  # seconds
# The first checkpoint comes after this fraction of the interval; then intervals double up to it.
FIRST = 1 / 20
USELESS = "training has diverged"
TRAINING = (
    "The last checkpoint is kept; lower optim.lr or set trainer.gradient_clip_val, and start again "
    "or continue with --resume"
)
ADAPTATION = "Lower adapt.lr and adapt.router_lr, or set adapt.gradient_clip_val"


class CheckpointFile(TorchCheckpointIO):
    """Writes checkpoints atomically, so that an interruption keeps the old or the new file.

    Lightning writes to the folder of temporary files; on another file system it would then copy
    over the only valid checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        with atomic_path(path) as temporary:
            torch.save(checkpoint, temporary)


def check_weights(module: pl.LightningModule, step: int, advice: str = TRAINING) -> None:
    """Raise a `DivergedError` if weights are NaN, or their squares are not finite."""
    for name, value in module.named_parameters():
        if value.requires_grad and not whole(value.float().square().isfinite().all()):
            raise not_finite(f"'{name}' has values that are not finite, or too large", step, advice)


def not_finite(what: str, step: int, advice: str = TRAINING) -> DivergedError:
    """Return the error of a diverged training."""
    return DivergedError(f"{what} at step {step}: {USELESS}. {advice}")


class RunLock(Callback):
    """Locks a run's folder during training, against other trainings.

    The processes of one training share the lock.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._held = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Lock the folder; raises a `ConfigError` if another process trains there."""
        if stage != "fit":
            return
        # All processes must write to the same folder.
        mine, deadline = None, time.monotonic() + PATIENCE
        expected = gathered(_seen(self.folder.config))[0]
        while (mine := _seen(self.folder.config)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)  # network file systems have delays
        strange = [place for place, same in gathered((gethostname(), mine == expected)) if not same]
        if strange:
            raise ConfigError(
                f"'{self.folder.path}' on {', '.join(strange)} is not the folder of the first "
                "process; run.dir must be a folder shared by all machines"
            )
        if trainer.is_global_zero:
            refusal = ConfigError(
                f"another process trains in '{self.folder.path}'; wait for it, or choose another "
                "name with -k run.name=NAME"
            )
            self._held.enter_context(locked(self.folder.path / ".lock", refusal))

    def teardown(self, *_: Any, **named: Any) -> None:
        self._held.close()

    on_exception = teardown


def _seen(path: Path) -> str | None:
    return read_text(path, ConfigError) if path.is_file() else None


class SaveBest(Checkpoint):
    """Saves the weights to ``checkpoint`` after each validation with the best score so far.

    The last step is always validated. The state has no paths, so a moved run can be resumed.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.score: float | None = None
        self.n_validations = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """After the last step, stop the training, so that Lightning validates."""
        last_epoch = trainer.current_epoch + 1 == trainer.max_epochs and trainer.is_last_batch
        if last_epoch or 0 <= trainer.max_steps <= trainer.global_step:
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        score = float(trainer.callback_metrics["val/score"])
        self.n_validations += 1
        if self.score is None or score > self.score:
            self.score = score
            check_weights(pl_module, trainer.global_step)
            trainer.save_checkpoint(self.checkpoint, weights_only=True)

    def kept(self, step: int) -> str:
        """Return a sentence on the best weights, those of ``step``."""
        times = f"{self.n_validations} validation{'s' * (self.n_validations != 1)}"
        return f"Kept the weights of step {step}, the best of {times} on the development rows."

    def state_dict(self) -> dict[str, Any]:
        score = None if self.score is None else torch.tensor(self.score)
        return {"best_model_score": score, "n_validations": self.n_validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, if its weights still exist."""
        score, self.n_validations = state_dict["best_model_score"], state_dict["n_validations"]
        if score is not None and self.checkpoint.is_file():
            self.score = float(score)


class SaveLast(Checkpoint):
    """Saves the state for resuming: after validations, at the end, and at step intervals.

    Between validations it saves just before a batch: at the end of a step, its logs and the end of
    its epoch would be missing, and Lightning's epoch counts would be wrong after two resumptions.
    It is a `Checkpoint` because Lightning runs these after all other callbacks, so that their state
    is complete.
    """

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps  # maximum interval
        self.accumulating = False  # pending gradients are not in checkpoints
        # Called before each batch; may stop the training.
        self.leave_if_asked: Callable[[pl.Trainer], None] = lambda trainer: None
        self._last_step = self._saved_at = 0

    def save(self, trainer: pl.Trainer) -> None:
        """Save, unless this step is already saved, which Lightning would count twice."""
        if trainer.global_step == self._saved_at:
            return
        check_weights(trainer.lightning_module, trainer.global_step)
        # Save logs first, because a resumed run continues from them.
        for logger in trainer.loggers:
            logger.save()
        trainer.save_checkpoint(self.checkpoint)
        self._saved_at = trainer.global_step

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start at the step of a resumed run, and check before each batch whether to save."""
        self._last_step = self._saved_at = trainer.global_step
        loader: Any = trainer.train_dataloader  # `mttl.data.loader.ResumableLoader`, or one like it
        loader.before_batch = lambda: self.before_batch(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Correct Lightning's logged step, which is one behind when a finished run continues."""
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def before_batch(self, trainer: pl.Trainer) -> None:
        """Stop if requested; save if the interval is over and no gradients are pending."""
        self.leave_if_asked(trainer)
        distance = min(self.every_n_steps, max(self._saved_at, int(FIRST * self.every_n_steps), 1))
        if not self.accumulating and trainer.global_step - self._saved_at >= distance:
            self.save(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.accumulating = trainer.global_step == self._last_step
        self._last_step = trainer.global_step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.accumulating:
            self.save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.save(trainer)


class SharedSteps(Callback):
    """Keeps batch counts at whole optimizer steps, for any number of batches per step.

    The number of batches per step depends on the number of processes, which may change when a run
    is resumed. Lightning's counts are converted when a checkpoint is loaded, and validations begin
    after complete steps.
    """

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["batches_per_step"] = trainer.accumulate_grad_batches

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Convert the batch counts to the current number of batches per step."""
        there, here = checkpoint.get("batches_per_step", 1), trainer.accumulate_grad_batches
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            for name, count in counts.items():
                counts[name] = count // there * here

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Round the validation interval to whole steps."""
        every, n_parts = trainer.val_check_batch, trainer.accumulate_grad_batches
        if isinstance(every, int):
            trainer.val_check_batch = max(n_parts, every // n_parts * n_parts)
