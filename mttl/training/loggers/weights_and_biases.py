"""Weights & Biases: its own program sends what is logged, or keeps it where it is offline."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mttl.training.loggers.experiment_logger import ExperimentLogger

logger = logging.getLogger(__name__)
STEP = "step"


class WeightsAndBiases(ExperimentLogger):
    """Logs to the project mttl, under the name of the run; files are in ``wandb/``.

    Args:
        folder: Of the run, which gives the name.
        resumed_step: The step that a resumed run continues from; it goes on under the id of before.
    """

    title = "Weights & Biases"
    advice = "Log in with `wandb login`, or keep the files here with WANDB_MODE=offline"

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        super().__init__(folder)
        self._resumed_step = resumed_step
        self._run: Any = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "wandb"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a run there, or continue that of before."""
        import wandb  # type: ignore[import-not-found]

        earlier = {"id": known, "resume": "allow"} if (known := self._earlier_id()) else {}
        self._run = wandb.init(
            project="mttl",
            name=self.path.parent.name,
            dir=str(self.path.parent),
            config=dict(settings),
            settings=wandb.Settings(silent=True),
            **earlier,
        )
        self._run.define_metric("*", step_metric=STEP)
        kept = f"kept in {self.path}; `wandb sync` sends it"
        where = kept if self._run.offline else self._run.url
        logger.info("%s: %s", self.title, where)

    def show_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Log numbers."""
        self._run.log({**numbers, STEP: step})

    def show_image(self, name: str, pixels: np.ndarray, step: int) -> None:
        """Log an image."""
        import wandb  # type: ignore[import-not-found]

        self._run.log({name: wandb.Image(pixels), STEP: step})

    def show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        """Log a table."""
        import wandb  # type: ignore[import-not-found]

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({name: table, STEP: step})

    def end(self, failed: bool) -> None:
        """Wait until all is sent, or kept."""
        self._run.finish(exit_code=int(failed))

    def _earlier_id(self) -> str | None:
        """Return the end of the name of the last folder: ``offline-run-20260101_000000-abcd``."""
        if not self._resumed_step:
            return None
        folders = sorted(self.path.glob("*run-*-*"), key=lambda path: path.name.split("run-")[1])
        return folders[-1].name.rpartition("-")[2] if folders else None
