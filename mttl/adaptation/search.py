"""Search for settings of adaptation on development tasks, or of training on the tasks' own rows.

A trial has its own folder, and the results of its jobs. No test row is read: jobs are run without
their test score.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 4.2: rates of adaptation are chosen
    on development tasks, that of training on the development rows of the training tasks.
    Points of ranges are those of a tree-structured Parzen estimator: Bergstra, Bardenet, Bengio and
    Kégl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011; by Optuna: Akiba, Sano, Yanase,
    Ohta and Koyama, KDD 2019, arXiv:1907.10902.
"""

import hashlib
import itertools
import json
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.table import Table

from mttl.adaptation.job import with_settings
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import FewShotJob, FewShotResult, Results, read_samples
from mttl.adaptation.resumable_jobs import Diverged, keep_settings
from mttl.adaptation.score_table import by_task, silent_tasks
from mttl.adaptation.shard import Shard, start_workers
from mttl.checkpoints.run_callbacks import USELESS
from mttl.checkpoints.run_folder import PLACE, RunFolder, check_still_there
from mttl.config.load import Tree, dump_config, with_value
from mttl.config.schema import Config, Range, Search
from mttl.io import yaml12
from mttl.io.errors import ConfigError, DivergedError, MttlError, some
from mttl.io.files import drop_cut_line, locked, write_table, write_text
from mttl.io.reading import read_json, read_table, to_number
from mttl.runtime.child_process import with_parent
from mttl.runtime.command import make_console, only_warnings
from mttl.runtime.libraries import check_libraries
from mttl.runtime.progress_bar import Count, counting
from mttl.runtime.text_table import TextTable
from mttl.tasks.partition import MEAN
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


MOST_SAID = 2000  # characters at the end of a log, among which a message is
# Settings that say nothing about what a training scores.
MAY_CHANGE = (*PLACE, "search.", "adapt.", "data.cache_dir", "trainer.loggers")


@dataclass(frozen=True)
class AdaptationTrials:
    """Trials that are few-shot jobs, of which a part runs here."""

    adaptation: Adaptation
    shard: Shard

    def results(self, place: Path) -> TrialResults:
        """Return the results of all jobs of the trial in a folder, none unless all have ended."""
        return job_results(place, self.adaptation.jobs)

    def run(self, values: Values, place: Path, count: Count, diverged: Diverged) -> None:
        """Run the trial of a folder, unless that has ended before."""
        trial = replace(self.adaptation, given=with_settings(self.adaptation.given, values))
        note_values(place, values)
        with Results(place, self.shard).writing() as results:
            for job in self.shard.share(self.adaptation.jobs):
                if job not in results.finished:
                    with diverged.noted(f"{place.name}: {job}"):
                        results.add(trial.run_job(job, score_test=False))
                count.advance()


@dataclass(frozen=True)
class TrainingTrials:
    """Trials that are each a `mttl train`; a finished one is read, an interrupted one continues."""

    config: Config

    def results(self, place: Path) -> TrialResults:
        """Return the development scores of the training in a folder, none if it has not ended."""
        path = RunFolder(place).results
        columns = ["task", "split", "metric", "score"]
        rows = read_table(path, MttlError, columns) if path.is_file() else []
        return tuple(
            FewShotResult(
                *(row["task"], 0, self.config.run.seed, row["metric"]),
                dev=to_number(row["score"], f"'{path}': a score", MttlError),
                test=math.nan,
                step=0,
                n_trained=0,
                n_empty=0,
            )
            for row in rows
            if row["split"] == "dev" and row["task"] != MEAN
        )

    def run(self, values: Values, place: Path, count: Count, diverged: Diverged) -> None:
        """Train as the folder says, unless that has ended before."""
        with diverged.noted(place.name):
            if not self.results(place):
                self._train(values, place)
            note_values(place, values)
            count.advance()

    def _train(self, values: Values, path: Path) -> None:
        settings = {"run.dir": str(path.parent), "run.name": path.name, "data.evaluate": ["dev"]}
        file = path.parent / f"{path.name}.yaml"
        write_text(file, dump_config(with_settings(self.config, {**values, **settings})))
        command = [sys.executable, "-m", "mttl", "train", "-c", str(file)]
        command += ["--resume"] if path.is_dir() else []
        how: dict[str, Any] = {"stderr": subprocess.STDOUT, "preexec_fn": with_parent()}
        with (path.parent / f"{path.name}.log").open("a", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=log, check=False, **how)
        if ended.returncode:
            said = Path(log.name).read_text(encoding="utf-8", errors="replace")[-MOST_SAID:]
            kind = DivergedError if USELESS in " ".join(said.split()) else MttlError
            raise kind(f"the trial {path.name} failed; what it printed is in '{log.name}'")


@only_warnings("mttl.data")  # of small files of every job
def search_run(config: Config, options: Namespace, command: Sequence[str]) -> None:
    """Search, write what was found and print a table."""
    console, status = make_console(), make_console(stderr=True)
    search, shard = check_search(config), options.shard
    named, shares = ", ".join(search.names), options.workers > 1 or shard.n_shards > 1
    work: AdaptationTrials | TrainingTrials
    title, jobs = "Search of training (%)", []
    if search.trains:
        given = {"--from": options.source, "--samples": options.samples}
        given |= {"--backbone": options.backbone, "--allow-seen": options.allow_seen}
        given |= {"--tasks": options.tasks != "dev", "--workers": options.workers > 1}
        given |= {"--shard": shard.n_shards > 1}
        if useless := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{', '.join(useless)} would change nothing: settings of training ({named}) are "
                "searched by trainings, on the tasks of training; leave them out"
            )
        if config.data.split == "train+dev":
            raise ConfigError(
                "data.split 'train+dev' trains on the rows that a search scores: set -k "
                "data.split=train data.validation=dev, and train with what is found on both"
            )
        folder = Path(options.out or Path(config.run.dir) / f"search-{config.run.name}")
        problem = f"the trials in '{folder}' were made with other settings"
        keep_settings(folder / "config.yaml", dump_config(config), problem, ignore=MAY_CHANGE)
        work = TrainingTrials(config)
    else:
        if options.source is None:
            raise ConfigError(f"{named} are of adaptation: name a trained run with --from RUN")
        if search.ranges and shares:
            raise ConfigError(
                "--workers and --shard share the trials of search.grid or search.points: a trial "
                "of search.ranges is drawn from the scores of those before. Leave them out"
            )
        chosen = {"samples": read_samples(options.samples), "allow_seen": options.allow_seen}
        chosen |= {"backbone": options.backbone, "splits": ("dev",)}
        adaptation = Adaptation.load(config, options.source, options.tasks, **chosen)
        folder = Path(options.out or adaptation.folder(f"search-{config.adapt.mode}"))
        adaptation.check_folder(folder)
        if options.workers > 1:
            start_workers(options.workers, shard, command)
        adaptation.to_device(shard.number)
        work, jobs = AdaptationTrials(adaptation, shard), adaptation.jobs
        title = f"Search, mode {config.adapt.mode} (%)"

    points = points_of(search)
    n_trials, n_tried = len(points) or search.trials, 0
    # The best is sought among all trials of the folder, those of earlier grids too.
    places = folder / "trials"
    found = finished_trials(places, work.results)
    trials, diverged = {trial_name(trial.values): trial for trial in found}, Diverged()
    with counting(status, "searching", n_trials * max(1, len(jobs))) as count:
        if shard.n_shards > 1:
            for values in points:
                work.run(values, places / trial_name(values), count, diverged)
            part = f"part {shard.number} of {shard.n_shards}"
            status.print(f"{part} has ended; start without --shard")
            diverged.report()
            return

        def evaluate(values: Values) -> float:
            nonlocal n_tried
            name, score = trial_name(values), -math.inf
            work.run(values, places / name, count, diverged)
            results = work.results(places / name)
            n_tried += 1
            trials.pop(name, None)  # those of this start stand last, in their order
            if results:
                trials[name] = Trial(values, results)
                score = trials[name].score
                write_trials(folder / "trials.csv", list(trials.values()))
                write_text(folder / "best.yaml", best_fragment(list(trials.values())))
            said = f"dev {100 * score:.1f}" if results else "diverged"
            status.print(f"{n_tried} of {n_trials}: {name}: {said}")
            return score

        refusal = ConfigError(
            f"another process searches in '{folder}': wait for it, or choose another folder with "
            "--out"
        )
        with locked(folder / ".lock", refusal):
            if search.ranges:
                search_ranges(search, evaluate, jobs=jobs, journal=folder / "optuna.journal")
            for values in points:
                evaluate(values)
    check_still_there(RunFolder(folder))
    if trials:
        console.print(trials_table(list(trials.values()), title))
        console.print(f"The best settings are in {folder / 'best.yaml'}", highlight=False)
    diverged.report()


def points_of(search: Search) -> list[Values]:
    """Return the trials that do not depend on one another."""
    return search.points or (grid_points(search.grid) if search.grid else [])


def check_search(config: Config) -> Search:
    """Return what to search, or say what is wrong with it before anything runs."""
    search = config.search
    if not search.names:
        raise ConfigError(
            "search.grid, search.points and search.ranges are empty: there is nothing to try. Add "
            "a file to -c, such as crossfit.yaml+search/mhr.yaml, or "
            "-k 'search.grid={adapt.lr: [1e-3, 1e-4]}'"
        )
    ends = [{name: getattr(x, end) for name, x in search.ranges.items()} for end in ("low", "high")]
    for values in points_of(search) or ends:
        try:
            with_settings(config, values)
        except ConfigError as error:
            raise ConfigError(f"section search: the trial {trial_name(values)}: {error}") from None
    return search
