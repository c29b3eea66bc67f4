"""Search for settings of training: trials, each a training, scored on the tasks' development rows.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 4.2: the rate of training is chosen
    on the development rows of the training tasks.
"""

import math
import subprocess
import sys
from pathlib import Path

from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.resumable_jobs import Diverged, keep_settings
from mttl.adaptation.search import (
    VALUES,
    Trial,
    Values,
    best_fragment,
    grid_points,
    note_values,
    read_values,
    trial_name,
    trials_table,
    write_trials,
)
from mttl.adaptation.search_ranges import search_ranges
from mttl.adaptation.settings import with_settings
from mttl.checkpoints.checkpoint_file import USELESS
from mttl.checkpoints.run_folder import PLACE, RunFolder
from mttl.config.load import dump_config
from mttl.config.schema import Config
from mttl.io.errors import ConfigError, DivergedError, MttlError
from mttl.io.files import locked, write_text
from mttl.io.reading import read_table, to_number
from mttl.runtime.child_process import with_parent
from mttl.runtime.command import make_console
from mttl.tasks.partition import MEAN

MOST_SAID = 2000  # characters at the end of a log, among which a message is
# Settings that say nothing about what a trial scores.
MAY_CHANGE = (*PLACE, "search.", "adapt.", "data.cache_dir", "trainer.loggers")


def search_training(config: Config, out: str | None) -> None:
    """Train with every setting, write the results and print a table.

    Every trial is a `mttl train`; finished trials are read, and interrupted ones continue. ``out``
    is ``search-NAME`` in the folder of runs by default.
    """
    if config.data.split == "train+dev":
        raise ConfigError(
            "data.split 'train+dev' trains on the rows that a search scores: set -k "
            "data.split=train data.validation=dev, and train with what is found on both"
        )
    folder = Path(out or Path(config.run.dir) / f"search-{config.run.name}")
    console, status = make_console(), make_console(stderr=True)
    keep_settings(
        folder / "config.yaml",
        dump_config(config),
        f"the trials in '{folder}' were made with other settings",
        ignore=MAY_CHANGE,
    )
    search, earlier, trials = config.search, _finished(config, folder), dict[str, Trial]()
    diverged = Diverged()

    def known() -> list[Trial]:  # those of this start first
        return list({**trials, **earlier, **trials}.values())

    def evaluate(values: Values) -> float:
        name = trial_name(values)
        with diverged.noted(name):
            trials[name] = Trial(values, _trained(config, values, folder))
        if name not in trials:
            status.print(f"{name}: diverged")
            return -math.inf
        note_values(folder / "trials" / name, values)
        write_trials(folder / "trials.csv", known())
        write_text(folder / "best.yaml", best_fragment(known()))
        score = trials[name].score
        status.print(f"{len(trials)}: {name}: dev {100 * score:.1f}")
        return score

    refusal = ConfigError(
        f"another process searches in '{folder}': wait for it, or choose another folder with --out"
    )
    if search.ranges:
        search_ranges(
            search.ranges,
            evaluate,
            n_trials=search.trials,
            seed=search.seed,
            jobs=(),
            journal=folder / "optuna.journal",
        )
    else:
        with locked(folder / ".lock", refusal):
            for values in search.points or grid_points(search.grid):
                evaluate(values)
    if known():
        console.print(trials_table(known(), "Search of training (%)"))
        console.print(f"The best settings are in {folder / 'best.yaml'}", highlight=False)
    diverged.report()


def _finished(config: Config, folder: Path) -> dict[str, Trial]:
    """Return the trials of a folder that have ended, those of earlier grids too."""
    found: dict[str, Trial] = {}
    for path in sorted(folder.glob(f"trials/*/{VALUES}")):
        if RunFolder(path.parent).results.is_file():
            values = read_values(path)
            found[trial_name(values)] = Trial(values, _trained(config, values, folder))
    return found


def _trained(config: Config, values: Values, folder: Path) -> tuple[FewShotResult, ...]:
    """Train with some settings, unless it has ended before, and return its scores."""
    name = trial_name(values)
    run = RunFolder(folder / "trials" / name)
    if not run.results.is_file():
        settings = {"run.dir": str(run.path.parent), "run.name": name, "data.evaluate": ["dev"]}
        file = folder / "trials" / f"{name}.yaml"
        write_text(file, dump_config(with_settings(config, {**values, **settings})))
        command = [sys.executable, "-m", "mttl", "train", "-c", str(file)]
        resume = ["--resume"] if run.path.is_dir() else []
        with (folder / "trials" / f"{name}.log").open("a", encoding="utf-8") as log:
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
            raise kind(f"the trial {name} failed; what it printed is in '{log.name}'")
    return tuple(
        FewShotResult(
            *(row["task"], 0, config.run.seed, row["metric"]),
            dev=to_number(row["score"], f"'{run.results}': a score", MttlError),
            test=math.nan,
            step=0,
            n_trained=0,
            n_empty=0,
        )
        for row in read_table(run.results, MttlError, ["task", "split", "metric", "score"])
        if row["split"] == "dev" and row["task"] != MEAN
    )
