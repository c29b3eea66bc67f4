"""Search for settings of training: trials, each a training, scored on the tasks' development rows.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 4.2: the rate of training is chosen
    on the development rows of the training tasks.
"""

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.resumable_jobs import Diverged, keep_settings
from mttl.adaptation.search import VALUES, Trial, Values, note_values, trial_name
from mttl.adaptation.settings import with_settings
from mttl.checkpoints.run_callbacks import USELESS
from mttl.checkpoints.run_folder import PLACE, RunFolder
from mttl.config.load import dump_config
from mttl.config.schema import Config
from mttl.io.errors import ConfigError, DivergedError, MttlError
from mttl.io.files import write_text
from mttl.io.reading import read_json, read_table, to_number
from mttl.runtime.child_process import with_parent
from mttl.runtime.progress_bar import Count
from mttl.tasks.partition import MEAN

MOST_SAID = 2000  # characters at the end of a log, among which a message is
# Settings that say nothing about what a trial scores.
MAY_CHANGE = (*PLACE, "search.", "adapt.", "data.cache_dir", "trainer.loggers")


@dataclass(frozen=True)
class TrainingTrials:
    """Trials that are each a `mttl train`; finished ones are read, and interrupted ones continue.

    The folder is ``search-NAME`` in the folder of runs by default.
    """

    config: Config
    folder: Path
    title = "Search of training (%)"

    @classmethod
    def of(cls, config: Config, out: str | None) -> "TrainingTrials":
        """Note in the folder what its trials are made from."""
        if config.data.split == "train+dev":
            raise ConfigError(
                "data.split 'train+dev' trains on the rows that a search scores: set -k "
                "data.split=train data.validation=dev, and train with what is found on both"
            )
        folder = Path(out or Path(config.run.dir) / f"search-{config.run.name}")
        keep_settings(
            folder / "config.yaml",
            dump_config(config),
            f"the trials in '{folder}' were made with other settings",
            ignore=MAY_CHANGE,
        )
        return cls(config, folder)

    def finished(self) -> list[Trial]:
        """Return the trials of the folder that have ended, those of earlier grids too."""
        paths = sorted(self.folder.glob(f"trials/*/{VALUES}"))
        ended = [path for path in paths if RunFolder(path.parent).results.is_file()]
        return [
            Trial(read_json(path, MttlError, dict), self._scores(path.parent)) for path in ended
        ]

    def run(
        self, values: Values, count: Count, diverged: Diverged
    ) -> tuple[FewShotResult, ...] | None:
        """Train with some settings, unless that has ended before, and return the scores."""
        name = trial_name(values)
        path = self.folder / "trials" / name
        with diverged.noted(name):
            if not RunFolder(path).results.is_file():
                self._train(values, path)
            note_values(path, values)
            count.advance()
            return self._scores(path)
        return None

    def _train(self, values: Values, path: Path) -> None:
        settings = {"run.dir": str(path.parent), "run.name": path.name, "data.evaluate": ["dev"]}
        file = path.parent / f"{path.name}.yaml"
        write_text(file, dump_config(with_settings(self.config, {**values, **settings})))
        command = [sys.executable, "-m", "mttl", "train", "-c", str(file)]
        resume = ["--resume"] if path.is_dir() else []
        with (path.parent / f"{path.name}.log").open("a", encoding="utf-8") as log:
            ended = subprocess.run(
                [*command, *resume],
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                preexec_fn=with_parent(),
            )
        if ended.returncode:
            said = Path(log.name).read_text(encoding="utf-8", errors="replace")[-MOST_SAID:]
            kind = DivergedError if USELESS in " ".join(said.split()) else MttlError
            raise kind(f"the trial {path.name} failed; what it printed is in '{log.name}'")

    def _scores(self, path: Path) -> tuple[FewShotResult, ...]:
        """Return the development scores of a training that has ended."""
        results = RunFolder(path).results
        return tuple(
            FewShotResult(
                *(row["task"], 0, self.config.run.seed, row["metric"]),
                dev=to_number(row["score"], f"'{results}': a score", MttlError),
                test=math.nan,
                step=0,
                n_trained=0,
                n_empty=0,
            )
            for row in read_table(results, MttlError, ["task", "split", "metric", "score"])
            if row["split"] == "dev" and row["task"] != MEAN
        )
