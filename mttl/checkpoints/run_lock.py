"""One process per run: two that train into one folder would overwrite each other's checkpoints."""

import time
from contextlib import ExitStack
from pathlib import Path
from socket import gethostname

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mttl.checkpoints.run_folder import RunFolder
from mttl.io.errors import ConfigError
from mttl.io.files import locked
from mttl.io.reading import read_text
from mttl.runtime.processes import gathered

PATIENCE = 10.0  # seconds


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
        if stage != "fit":
            return
        self._check_shared()
        if not trainer.is_global_zero:
            return
        refusal = ConfigError(
            f"another process trains in '{self.folder.path}': wait for it, or choose another name "
            "with -k run.name=NAME"
        )
        self._held.enter_context(locked(self.folder.path / ".lock", refusal))

    def _check_shared(self) -> None:
        """See that all processes write into one folder, wherever their machines are.

        Raises:
            ConfigError: If they do not.
        """
        mine, deadline = None, time.monotonic() + PATIENCE
        expected = gathered(_seen(self.folder.config))[0]
        while (mine := _seen(self.folder.config)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)  # a network may be late
        strange = [place for place, same in gathered((gethostname(), mine == expected)) if not same]
        if strange:
            raise ConfigError(
                f"'{self.folder.path}' of the first process is not that of {', '.join(strange)}: "
                "run.dir must be a folder that all machines see, such as one of a network file "
                "system"
            )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let others in."""
        self._held.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Let others in."""
        self._held.close()


def _seen(path: Path) -> str | None:
    return read_text(path, ConfigError) if path.is_file() else None
