"""Trials of a search, each with the results of its jobs: their points, files, scores and table.

No test row is read: jobs are run without their test score.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 4.2: rates are chosen on development
    tasks.
    Points of ranges are those of a tree-structured Parzen estimator: Bergstra, Bardenet, Bengio and
    Kégl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011; by Optuna: Akiba, Sano, Yanase,
    Ohta and Koyama, KDD 2019, arXiv:1907.10902.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.table import Table

from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.adaptation.results import Results
from mttl.adaptation.score_table import by_task, silent_tasks
from mttl.config.load import Tree, with_value
from mttl.config.schema import Range, Search
from mttl.io import yaml12
from mttl.io.errors import MttlError, some
from mttl.io.files import drop_cut_line, write_table, write_text
from mttl.io.reading import read_json
from mttl.runtime.libraries import check_libraries
from mttl.runtime.text_table import TextTable
from mttl.training.text_to_text import mean_score

# One value for each searched setting, by its dotted name.
Values = dict[str, Any]
TrialResults = tuple[FewShotResult, ...]
# The file of a trial's folder that holds its values.
VALUES = "values.json"


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, by dotted name, and the results of all jobs."""

    values: Values
    results: TrialResults

    @property
    def task_scores(self) -> dict[str, float]:
        """The mean score of every task over its samples and seeds, as a fraction."""
        scores = by_task(self.results, "dev")
        return {task: mean_score(group) for task, group in scores.items()}

    @property
    def score(self) -> float:
        """The mean over tasks, by which settings are chosen."""
        return mean_score(list(self.task_scores.values()))


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Return every combination of values; the last setting varies fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def trial_name(values: Mapping[str, Any]) -> str:
    """Return the name of a trial's folder: its settings, so that equal trials share their jobs."""
    # A plus, as of 1e+30, joins files of a configuration.
    return ",".join(f"{name}={value}" for name, value in sorted(values.items())).replace("+", "")


def note_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Write a trial's settings into its folder, so that `finished_trials` finds it."""
    write_text(folder / VALUES, json.dumps(dict(values), indent=2) + "\n")


def job_results(folder: Path, jobs: Sequence[FewShotJob]) -> TrialResults:
    """Return the results of a trial's jobs, none unless all have ended."""
    known = Results(folder).finished
    return tuple(known[job] for job in jobs) if all(job in known for job in jobs) else ()


def finished_trials(folder: Path, results_of: Callable[[Path], TrialResults]) -> list[Trial]:
    """Return the trials in the folders of a folder that have results."""
    places = {path: results_of(path.parent) for path in sorted(folder.glob(f"*/{VALUES}"))}
    return [Trial(read_json(path, MttlError, dict), own) for path, own in places.items() if own]


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, those with higher scores first; equal ones stay in order."""
    return sorted(trials, key=lambda trial: -trial.score)


def best_fragment(trials: Sequence[Trial]) -> str:
    """Return the best trial's settings as a configuration fragment (YAML)."""
    best = ranked(trials)[0]
    tree: Tree = {}
    for name, value in best.values.items():
        tree = with_value(tree, name, value)
    return (
        f"# The best of {len(trials)} trials: {100 * best.score:.1f} % on the development rows of\n"
        f"# {', '.join(best.task_scores)} (mean over tasks).\n" + yaml12.dump(tree)
    )


def write_trials(path: Path, trials: Sequence[Trial]) -> None:
    """Write a table as CSV: the settings, the score, and the score of every task (fractions).

    A setting that a trial did not search is empty: it has the configuration's value there.
    """
    blank = dict.fromkeys(_names(trials), "")
    rows = [
        blank
        | trial.values
        | {"score": trial.score, "jobs": len(trial.results)}
        | {f"dev/{task}": score for task, score in trial.task_scores.items()}
        for trial in trials
    ]
    write_table(path, list(rows[0]), rows)


def trials_table(trials: Sequence[Trial], title: str) -> Table:
    """Return all trials, the best first, with their scores in %."""
    (best, *_), names = ranked(trials), _names(trials)
    table = TextTable(title, digits=1).words(*names).numbers("dev", "jobs")
    for trial in ranked(trials):
        cells = [trial.values.get(name, "") for name in names]
        shown = [f"{value:.3g}" if isinstance(value, float) else value for value in cells]
        table.add(*shown, 100 * trial.score, len(trial.results))
    table.caption = (
        f"dev: the mean over {', '.join(best.task_scores)}, on development rows. "
        "No test row was read. The file trials.csv has the score of every task"
    )
    if silent := silent_tasks(best.results):
        table.caption += f". All answers of the best trial are empty on {some(silent)}"
    if any(len(trial.values) < len(names) for trial in trials):
        table.caption += ". Empty settings are those of the configuration"
    return table


def _names(trials: Sequence[Trial]) -> list[str]:
    """Return the settings that any trial searched: a folder may hold trials of several grids."""
    return list(dict.fromkeys(name for trial in trials for name in trial.values))


def search_ranges(
    search: Search,
    evaluate: Callable[[Values], float],
    *,
    jobs: Sequence[FewShotJob],
    journal: Path,
) -> None:
    """Draw and evaluate trials until there are enough, continuing an earlier start.

    Draws depend only on the seed and the finished trials, so an interrupted search ends like an
    uninterrupted one. Trials of an earlier start are evaluated again, from the results of their
    jobs. Other jobs, ranges or seeds begin another search in the same journal. The folder is
    locked by the caller.
    """
    check_libraries("optuna")
    import optuna.storages.journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges, seed = search.ranges, search.seed
    drop_cut_line(journal)
    # The folder has a lock. Optuna's own is a file that a kill leaves, and all wait for.
    held: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    backend = optuna.storages.journal.JournalFileBackend(str(journal), held)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name=_digest(ranges, seed, jobs),
        direction="maximize",
        load_if_exists=True,
    )
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)  # it was interrupted
    finished = study.get_trials(states=(states.COMPLETE,))[: search.trials]
    for trial in finished:
        evaluate({name: trial.params[name] for name in ranges})
    for number in range(len(finished), search.trials):
        # A seed for each trial: one for all would begin its draws again after every start. A sum
        # would give trials of neighbouring seeds the same draws.
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed)
        trial = study.ask()
        values = {name: _draw(trial, name, bounds) for name, bounds in ranges.items()}
        study.tell(trial, evaluate(values))


def _draw(trial: Any, name: str, bounds: Range) -> float:
    whole = isinstance(bounds.low, int) and isinstance(bounds.high, int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, bounds.low, bounds.high, log=bounds.log)


def _digest(ranges: Mapping[str, Range], seed: int, jobs: Sequence[FewShotJob]) -> str:
    bounds = [[name, [own.low, own.high, own.log]] for name, own in ranges.items()]
    text = json.dumps([bounds, seed, [list(vars(job).values()) for job in jobs]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
