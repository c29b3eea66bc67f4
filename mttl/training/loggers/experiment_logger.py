"""The interface of experiment loggers, and what happens where one of them fails."""

import contextlib
import logging
import shutil
from abc import abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers.logger import Logger

from mttl.io.errors import ConfigError
from mttl.io.reading import reason

logger = logging.getLogger(__name__)


class ExperimentLogger(Logger):
    """Logs a run. A logger that does not start is refused; one that fails later is left alone.

    Args:
        folder: Of the run; the logger has one of its own in it.
    """

    title: str
    advice: str

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / self.name
        self._is_open = self._is_new = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What the settings call it, and the name of its folder."""

    @property
    def version(self) -> str:
        """Always empty: a run has one logger of a kind."""
        return ""

    @rank_zero_only
    def open(self, settings: Mapping[str, Any]) -> None:
        """Begin, before the run writes anything else.

        Raises:
            ConfigError: If the logger does not start; nothing of it is left then.
        """
        self._is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.begin(settings)
        except Exception as error:
            self.withdraw()
            raise ConfigError(
                f"trainer.loggers: {self.title} does not start ({reason(error)}). {self.advice}, "
                f"or leave '{self.name}' out"
            ) from error
        self._is_open = True

    @rank_zero_only
    def withdraw(self) -> None:
        """End before the run began; leave nothing where nothing was."""
        self.close(failed=True)
        if self._is_new:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # there is a run already
                self.path.parent.rmdir()

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Show numbers of a step."""
        self._try(lambda: self.show_numbers(metrics, step or 0))

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: `open` has shown the settings of the run."""

    @rank_zero_only
    def log_image(self, name: str, pixels: UInt8[np.ndarray, "H W 3"], step: int) -> None:
        """Show an image of a step."""
        self._try(lambda: self.show_image(name, pixels, step))

    @rank_zero_only
    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        """Show a table of texts of a step."""
        self._try(lambda: self.show_table(name, columns, rows, step))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End where training failed; else there are results to come, and `close`."""
        if status != "success":
            self.close(failed=True)

    @rank_zero_only
    def close(self, *, failed: bool = False) -> None:
        """End."""
        self._try(lambda: self.end(failed))
        self._is_open = False

    def _try(self, show: Callable[[], object]) -> None:
        if not self._is_open:
            return
        try:
            show()
        except Exception as error:
            self._is_open = False
            logger.warning("%s fails, and the run goes on without: %s", self.title, reason(error))

    @abstractmethod
    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start, and show the settings."""

    @abstractmethod
    def show_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Show numbers by name."""

    @abstractmethod
    def show_image(self, name: str, pixels: UInt8[np.ndarray, "H W 3"], step: int) -> None:
        """Show an image."""

    @abstractmethod
    def show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        """Show a table."""

    @abstractmethod
    def end(self, failed: bool) -> None:
        """Hand over what is left, and stop."""
