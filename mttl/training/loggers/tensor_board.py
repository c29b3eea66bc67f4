"""TensorBoard: event files in the folder of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mttl.training.loggers.experiment_logger import ExperimentLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

COMPARED = ("val/score", "val/loss", "train/loss")  # columns of the page that compares settings


class TensorBoard(ExperimentLogger):
    """Writes events to ``tensorboard/``.

    Args:
        folder: Of the run.
        resumed_step: The step that a resumed run continues from: later events are of work that was
            lost, and hidden.
    """

    title = "TensorBoard"
    advice = "See that the disk has room"

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        super().__init__(folder)
        self._resumed_step = resumed_step
        self._writer: SummaryWriter | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "tensorboard"

    @property
    def writer(self) -> "SummaryWriter":
        """Of the events.

        Raises:
            RuntimeError: If there is none yet.
        """
        if self._writer is None:
            raise RuntimeError("the logger is not open: call `open` first")
        return self._writer

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Open an event file; its first events hold the settings."""
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter

        purge = self._resumed_step + 1 if self._resumed_step else None
        self._writer = SummaryWriter(str(self.path), purge_step=purge)
        shown = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings.items()
        }
        for summary in hparams(shown, dict.fromkeys(COMPARED)):
            self._writer.file_writer.add_summary(summary)  # type: ignore[union-attr]

    def show_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def show_image(self, name: str, pixels: np.ndarray, step: int) -> None:
        """Write an image."""
        self.writer.add_image(name, pixels, step, dataformats="HWC")

    def show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        """Write a table of Markdown, whose cells are code: texts may hold anything."""
        lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        self.writer.add_text(name, "\n".join(lines), step)

    def save(self) -> None:
        """Bring what was written to the disk."""
        self._try(lambda: self.writer.flush())

    def end(self, failed: bool) -> None:
        """Close the file."""
        self.writer.close()


def _cell(text: str) -> str:
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;")):
        text = text.replace(plain, escaped)
    return "<code>" + "<br>".join(text.splitlines()) + "</code>"
