"""One process per run: two that train into one folder would overwrite each other's checkpoints."""

from contextlib import ExitStack

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mttl.errors import ConfigError
from mttl.files import locked
from mttl.training.run_folder import RunFolder


class RunLock(Callback):
    """Holds a run's folder while it trains.

    Args:
        folder: The folder; the processes of one training share it.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._held = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Lock the folder.

        Raises:
            ConfigError: If another process trains there.
        """
        if stage != "fit" or not trainer.is_global_zero:
            return
        refusal = ConfigError(
            f"another process trains in '{self.folder.path}': wait for it, or choose another name "
            "with -k run.name=NAME"
        )
        self._held.enter_context(locked(self.folder.path / ".lock", refusal))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let others in."""
        self._held.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Let others in."""
        self._held.close()
