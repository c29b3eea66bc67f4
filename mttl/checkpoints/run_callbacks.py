"""Checkpoints, whole or not at all; callbacks that save a run, and keep others away from it."""

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
from mttl.io.errors import ConfigError, DivergedError, TrainingError
from mttl.io.files import atomic_path, locked
from mttl.io.reading import read_text
from mttl.runtime.processes import gathered

PATIENCE = 10.0  # seconds
PROGRESS = "epoch_loop.batch_progress"
# The first checkpoint comes after this fraction of the interval; distances then double up to it.
FIRST = 1 / 20
USELESS = "the weights are useless from here on"
TRAINING = (
    "The last checkpoint is kept; lower optim.lr, or set trainer.gradient_clip_val, and start "
    "again or continue with --resume"
)
ADAPTATION = "Lower adapt.lr and adapt.router_lr, or set adapt.gradient_clip_val"


class CheckpointFile(TorchCheckpointIO):
    """Writes checkpoints so that a kill or a full disk leaves the old file or the new one.

    Lightning writes to the folder of temporary files; if that is on another file system, it then
    copies over the only good checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint."""
        with atomic_path(path) as temporary:
            torch.save(checkpoint, temporary)


def check_weights(module: pl.LightningModule, step: int, advice: str = TRAINING) -> None:
    """Refuse to keep weights that are NaN, or whose squares, which norms take, are not finite."""
    for name, value in module.named_parameters():
        if value.requires_grad and not whole(value.float().square().isfinite().all()):
            raise not_finite(f"'{name}' holds numbers that are not finite or huge", step, advice)


def not_finite(what: str, step: int, advice: str = TRAINING) -> DivergedError:
    """Return the error of a training that has diverged."""
    return DivergedError(f"{what} at step {step}: {USELESS}. {advice}")


class RunLock(Callback):
    """Holds a run's folder while it trains: two runs would overwrite each other's checkpoints.

    The processes of one training share it.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._held = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Lock the folder, unless another process trains there (`ConfigError`)."""
        if stage != "fit":
            return
        self._check_shared()
        if trainer.is_global_zero:
            refusal = ConfigError(
                f"another process trains in '{self.folder.path}': wait for it, or choose another "
                "name with -k run.name=NAME"
            )
            self._held.enter_context(locked(self.folder.path / ".lock", refusal))

    def _check_shared(self) -> None:
        """See that all processes write into one folder, wherever their machines are."""
        mine, deadline = None, time.monotonic() + PATIENCE
        expected = gathered(_seen(self.folder.config))[0]
        while (mine := _seen(self.folder.config)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)  # a network may be late
        strange = [place for place, same in gathered((gethostname(), mine == expected)) if not same]
        if strange:
            raise ConfigError(
                f"'{self.folder.path}' of the first process is not that of {', '.join(strange)}: "
                "run.dir must be a folder that all machines see"
            )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let others in."""
        self._held.close()

    def on_exception(self, *_: Any) -> None:
        """Let others in."""
        self._held.close()


def _seen(path: Path) -> str | None:
    return read_text(path, ConfigError) if path.is_file() else None


class SaveBest(Checkpoint):
    """Saves the weights, into ``checkpoint``, after a validation with the best score so far.

    The last step is validated, too, whatever the interval. Its state has no paths, so a moved run
    can be resumed.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.score: float | None = None
        self.n_validations = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """After the last step, say that the training stops: then Lightning validates."""
        last_epoch = trainer.current_epoch + 1 == trainer.max_epochs and trainer.is_last_batch
        if last_epoch or 0 <= trainer.max_steps <= trainer.global_step:
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if this validation was the best one."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        score = float(trainer.callback_metrics["val/score"])
        self.n_validations += 1
        if self.score is None or score > self.score:
            self.score = score
            check_weights(pl_module, trainer.global_step)
            trainer.save_checkpoint(self.checkpoint, weights_only=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score, and of how many."""
        score = None if self.score is None else torch.tensor(self.score)
        return {"best_model_score": score, "n_validations": self.n_validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the best score, if its weights still exist."""
        score, self.n_validations = state_dict["best_model_score"], state_dict["n_validations"]
        if score is not None and self.checkpoint.is_file():
            self.score = float(score)


class SaveLast(Checkpoint):
    """Saves the state to resume from: after validations, at the end, and every so many steps.

    Between validations it saves just before a batch, when all that belongs to earlier ones is over:
    in a hook at the end of a step the logs of the step and the end of its epoch would be missing,
    and Lightning's counts of epochs would be one behind in a run that was resumed twice.

    It is a `Checkpoint` because Lightning runs those after all other callbacks, in the order given,
    so that what they learned from a validation is in the state.
    """

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps  # at most
        self.accumulating = False  # gradients wait for another batch: they are in no checkpoint
        # Called before each batch, and may end the training.
        self.leave_if_asked: Callable[[pl.Trainer], None] = lambda trainer: None
        self._last_step = self._saved_at = 0

    def save(self, trainer: pl.Trainer) -> None:
        """Save, unless this very step was saved already: Lightning would count it twice."""
        if trainer.global_step == self._saved_at:
            return
        if self._saved_at and trainer.is_global_zero and not self.checkpoint.is_file():
            raise TrainingError(
                f"'{self.checkpoint}' was removed while the run went on. Start the run again"
            )
        check_weights(trainer.lightning_module, trainer.global_step)
        # What was logged up to here first: a resumed run takes it from there.
        for logger in trainer.loggers:
            logger.save()
        trainer.save_checkpoint(self.checkpoint)
        self._saved_at = trainer.global_step

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the step of a resumed run, and look before each batch whether it is time."""
        self._last_step = self._saved_at = trainer.global_step
        loader: Any = trainer.train_dataloader  # `mttl.data.loader.ResumableLoader`, or one like it
        loader.before_batch = lambda: self.before_batch(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Log at the optimizer's step: Lightning is one behind in a finished run that goes on."""
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def before_batch(self, trainer: pl.Trainer) -> None:
        """Leave if asked; save if the last time was long ago, and no gradients wait."""
        self.leave_if_asked(trainer)
        distance = min(self.every_n_steps, max(self._saved_at, int(FIRST * self.every_n_steps), 1))
        if not self.accumulating and trainer.global_step - self._saved_at >= distance:
            self.save(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note whether gradients wait."""
        self.accumulating = trainer.global_step == self._last_step
        self._last_step = trainer.global_step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a validation, unless gradients wait for another batch."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fitting and not self.accumulating:
            self.save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end."""
        self.save(trainer)


class SharedSteps(Callback):
    """Keeps counts of batches whole steps, for any number of batches per step.

    How many batches make up an optimizer step depends on the number of processes, which may change
    when a run is resumed, and Lightning counts batches. So what it counts is translated where a
    checkpoint is loaded, and validations begin when a step is over.
    """

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note how many batches a step has."""
        checkpoint["batches_per_step"] = trainer.accumulate_grad_batches

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count the batches that the steps would have had here; a part of a step is none."""
        there, here = checkpoint.get("batches_per_step", 1), trainer.accumulate_grad_batches
        progress = checkpoint["loops"]["fit_loop"][PROGRESS]
        for counts in (progress["total"], progress["current"]):
            for name, count in counts.items():
                counts[name] = count // there * here

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let a part of an epoch, after which there is a validation, be whole steps."""
        every, n_parts = trainer.val_check_batch, trainer.accumulate_grad_batches
        if isinstance(every, int):
            trainer.val_check_batch = max(n_parts, every // n_parts * n_parts)
