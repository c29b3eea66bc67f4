"""``metrics.csv``: one row per step at which something was logged."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers.logger import Logger

from mttl.io.errors import CheckpointError
from mttl.io.files import write_table
from mttl.io.reading import read_table


class MetricsFile(Logger):
    """Writes metrics as CSV, whole each time, and unlike Lightning's continues a resumed run's.

    Args:
        path: The file.
        keep_until: Keep the rows of an earlier start up to this step; 0 starts a new file.
    """

    def __init__(self, path: Path, keep_until: int = 0) -> None:
        super().__init__()
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        if keep_until and path.is_file():
            for row in read_table(path, CheckpointError, ["step"]):
                step = int(row["step"])
                if step <= keep_until:
                    self.rows[step] = {name: value for name, value in row.items() if value != ""}

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def version(self) -> str:
        """Always empty: a run has one file."""
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step."""
        step = max(self.rows, default=0) if step is None else step
        self.rows.setdefault(step, {"step": step}).update(metrics)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the run folder holds the configuration."""

    @rank_zero_only
    def save(self) -> None:
        """Write the file."""
        if not self.rows:
            return
        columns = sorted({name for row in self.rows.values() for name in row} - {"step"})
        rows = (self.rows[step] for step in sorted(self.rows))
        write_table(self.path, ["step", *columns], rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left."""
        self.save()
