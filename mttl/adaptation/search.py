"""Search hyperparameters of adaptation on development tasks, or of training on its tasks.

Each trial has a folder with the results of its jobs. Test rows are never read.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 4.2: adaptation rates are selected
    on development tasks, the training rate on development rows of the training tasks.
"""

import itertools
import json
import math
import platform
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from envs.interface import check_levels
from envs.levels import LevelError
from mttl.adaptation import plan
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import (
    SUCCESS,
    FewShotJob,
    FewShotResult,
    Results,
    check_folder,
    read_samples,
)
from mttl.adaptation.resumable_jobs import Diverged, keep_settings
from mttl.adaptation.score_table import by_task, silent_tasks
from mttl.adaptation.search_study import TrialResults, Values, open_study, search_ranges
from mttl.adaptation.shard import Shard, start_workers
from mttl.analysis.saved_scores import saved_scores
from mttl.checkpoints.inventory_files import inventory_digest, inventory_folder
from mttl.checkpoints.run_callbacks import USELESS
from mttl.checkpoints.run_folder import PLACE, RunFolder, settings_of
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import Tree, dump_config, with_settings, with_value
from mttl.config.schema import Config, Search
from mttl.io import yaml12
from mttl.io.errors import ConfigError, DivergedError, MttlError, raised_as, some
from mttl.io.files import locked, write_table, write_text
from mttl.io.reading import read_json, read_text
from mttl.runtime.child_process import with_parent
from mttl.runtime.command import make_console, only_warnings
from mttl.runtime.progress_bar import Count, counting
from mttl.runtime.text_table import TextTable
from mttl.tasks.partition import MEAN
from mttl.training.text_to_text import mean_score

# File with a trial's values in its folder.
VALUES = "values.json"


@dataclass(frozen=True)
class Trial:
    """Settings of a trial by dotted name, and the results of all its jobs."""

    values: Values
    results: TrialResults

    @property
    def task_scores(self) -> dict[str, float]:
        """Mean score of each task over samples and seeds, as a fraction."""
        scores = by_task(self.results, "dev")
        return {task: mean_score(group) for task, group in scores.items()}

    @property
    def score(self) -> float:
        """Mean score over tasks, which selects the best trial."""
        return mean_score(list(self.task_scores.values()))


def trial_name(values: Mapping[str, Any]) -> str:
    """Return the name of a trial's folder: its settings, so that equal trials share jobs."""
    # A plus, as in 1e+30, would join configuration files.
    return ",".join(f"{name}={value}" for name, value in sorted(values.items())).replace("+", "")


def note_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Write a trial's settings to its folder, where `finished_trials` finds them."""
    write_text(folder / VALUES, json.dumps(dict(values), indent=2) + "\n")


def job_results(folder: Path, jobs: Sequence[FewShotJob]) -> TrialResults:
    """Return the results of a trial's jobs; empty unless all have finished."""
    known = Results(folder).finished
    return tuple(known[job] for job in jobs) if all(job in known for job in jobs) else ()


def finished_trials(folder: Path, results_of: Callable[[Path], TrialResults]) -> list[Trial]:
    """Return the finished trials in a folder."""
    places = {path: results_of(path.parent) for path in sorted(folder.glob(f"*/{VALUES}"))}
    return [Trial(read_json(path, MttlError, dict), own) for path, own in places.items() if own]


def best_fragment(trials: Sequence[Trial]) -> str:
    """Return the best trial's settings as a configuration fragment (YAML)."""
    best = max(trials, key=lambda trial: trial.score)
    tree: Tree = {}
    for name, value in best.values.items():
        tree = with_value(tree, name, value)
    return (
        f"# The best of {len(trials)} trials: {100 * best.score:.1f} % on development data of\n"
        f"# {', '.join(best.task_scores)} (mean over tasks).\n" + yaml12.dump(tree)
    )


def write_trials(path: Path, trials: Sequence[Trial]) -> None:
    """Write trials to a CSV file: settings, score, and the score of each task (fractions).

    A setting that a trial did not search is empty and has the configuration's value.
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
    """Return a table of all trials, best first, with scores in %."""
    ranked, names = sorted(trials, key=lambda trial: -trial.score), _names(trials)
    table = TextTable(title, digits=1).words(*names).numbers("dev", "jobs")
    for trial in ranked:
        cells = [trial.values.get(name, "") for name in names]
        shown = [f"{value:.3g}" if isinstance(value, float) else value for value in cells]
        table.add(*shown, 100 * trial.score, len(trial.results))
    best = ranked[0]
    levels = best.results[0].metric == SUCCESS
    table.caption = (
        f"dev: mean over {', '.join(best.task_scores)} on development "
        f"{'episodes' if levels else 'rows. Test rows were not read'}. trials.csv has the score of "
        f"each {'level' if levels else 'task'}"
    )
    if silent := silent_tasks(best.results):
        table.caption += f". All answers of the best trial are empty on {some(silent)}"
    if any(len(trial.values) < len(names) for trial in trials):
        table.caption += ". Empty settings are those of the configuration"
    return table


def _names(trials: Sequence[Trial]) -> list[str]:
    """Return the settings that any trial searched; grids may differ."""
    return list(dict.fromkeys(name for trial in trials for name in trial.values))


# Settings that do not affect the score of a training.
MAY_CHANGE = (*PLACE, "search.", "adapt.", "data.cache_dir", "trainer.loggers")


def origin_of(folder: Path, ignore: tuple[str, ...], but: tuple[str, ...] = ()) -> str:
    """Return the recorded settings and skills that trials depend on, as `keep_settings`."""
    settings = settings_of(folder)
    kept = {name: x for name, x in settings.items() if name in but or not name.startswith(ignore)}
    skills = folder / "inventory.sha256"
    return f"{kept} {read_text(skills, MttlError) if skills.is_file() else ''}"


@dataclass(frozen=True)
class AdaptationTrials:
    """Trials that consist of few-shot jobs, of which this process runs a shard."""

    adaptation: Adaptation
    shard: Shard
    may_change = (plan.MAY_CHANGE, plan.SHARED)

    def results(self, place: Path) -> TrialResults:
        """Return the results of a trial's jobs; empty unless all have finished."""
        return job_results(place, self.adaptation.jobs)

    def run(self, values: Values, place: Path, count: Count, diverged: Diverged) -> None:
        """Run the missing jobs of a trial."""
        trial = replace(self.adaptation, given=with_settings(self.adaptation.given, values))
        note_values(place, values)
        with Results(place, self.shard).writing() as results:
            for job in self.shard.share(self.adaptation.jobs):
                if job not in results.finished:
                    with diverged.noted(f"{place.name}: {job}"):
                        results.add(trial.run_job(job, score_test=False))
                count.advance()


@dataclass(frozen=True)
class CommandTrials:
    """Trials that are commands: trainings, or the adaptations of policies in ``jobs``.

    Finished ones are reused, interrupted ones continue.
    """

    config: Config | BabyAIConfig
    source: str | None = None
    jobs: tuple[FewShotJob, ...] = ()

    @property
    def may_change(self) -> tuple[tuple[str, ...], ...]:
        """Settings that may differ between processes, and those that they share."""
        return (plan.MAY_CHANGE, plan.SHARED) if self.jobs else (MAY_CHANGE,)

    def results(self, place: Path) -> TrialResults:
        """Return the development scores of a trial; empty if it has not finished."""
        if self.jobs:
            return job_results(place, self.jobs)
        return tuple(
            FewShotResult(
                *(row.task, 0, self.config.run.seed, row.metric),
                dev=row.score,
                test=math.nan,
                step=0,
                n_trained=0,
                n_empty=0,
            )
            for row in saved_scores(RunFolder(place).results)
            if row.split in ("dev", "greedy", "sampled")
            and row.task != MEAN
            and row.metric != "steps"
        )

    def run(self, values: Values, place: Path, count: Count, diverged: Diverged) -> None:
        """Run the command of a trial, unless it has finished."""
        with diverged.noted(place.name):
            if not self.results(place):
                self._call(values, place)
            note_values(place, values)
            count.advance(max(1, len(self.jobs)))

    def _call(self, values: Values, path: Path) -> None:
        settings = {"run.dir": str(path.parent), "run.name": path.name}
        if isinstance(self.config, Config):
            settings |= {"data.evaluate": ["dev"]}
        else:  # the final evaluation plays other episodes
            seed = self.config.rl.evaluation.seed + 1
            settings |= {"rl.evaluation.seed": seed, "rl.evaluation.choose": ["greedy"]}
        file = path.parent / f"{path.name}.yaml"
        write_text(file, dump_config(with_settings(self.config, {**values, **settings})))
        command = ["train", "-c", str(file), *(["--resume"] if path.is_dir() else [])]
        if self.jobs:
            levels = ",".join(dict.fromkeys(job.task for job in self.jobs))
            command = ["adapt", "-c", str(file), "--from", str(self.source), "--tasks", levels]
            command += ["--out", str(path), "--allow-seen"]  # checked before
        command = [sys.executable, "-m", "mttl", *command]
        how: dict[str, Any] = {"stderr": subprocess.STDOUT, "preexec_fn": with_parent()}
        with (path.parent / f"{path.name}.log").open("a", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=log, check=False, **how)
        if ended.returncode:
            said = Path(log.name).read_text(encoding="utf-8", errors="replace")[-2000:]
            kind = DivergedError if USELESS in " ".join(said.split()) else MttlError
            raise kind(f"the trial {path.name} failed; see its output in '{log.name}'")


@only_warnings("mttl.data")  # every job reads small files
def search_run(config: Config | BabyAIConfig, options: Namespace, command: Sequence[str]) -> None:
    """Run the search, write the results and print a table."""
    console, status = make_console(), make_console(stderr=True)
    search, shard = check_search(config), options.shard
    named, shares = ", ".join(search.names), options.workers > 1 or shard.n_shards > 1
    if options.storage and not search.ranges:
        raise ConfigError(
            "--storage shares the trials of search.ranges; share those of search.grid and "
            "search.points by --shard or --workers"
        )
    work: AdaptationTrials | CommandTrials
    title, jobs = "Search of training (%)", []
    if search.trains:
        given = {"--from": options.source, "--samples": options.samples}
        given |= {"--backbone": options.backbone, "--allow-seen": options.allow_seen}
        given |= {"--tasks": options.tasks != "dev", "--workers": options.workers > 1}
        given |= {"--shard": shard.n_shards > 1}
        if useless := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{', '.join(useless)} would have no effect in a search of training settings "
                f"({named}), which trains on the training tasks; remove it"
            )
        if isinstance(config, Config) and config.data.split == "train+dev":
            raise ConfigError(
                "data.split 'train+dev' trains on the rows that a search scores; use -k "
                "data.split=train data.validation=dev, and train with the result on both"
            )
        folder = Path(options.out or Path(config.run.dir) / f"search-{config.run.name}")
        problem = f"the trials in '{folder}' were made with other settings"
        keep_settings(folder / "config.yaml", dump_config(config), problem, ignore=MAY_CHANGE)
        work = CommandTrials(config)
    else:
        if options.source is None:
            raise ConfigError(f"{named} are settings of adaptation; name a run with --from RUN")
        if search.ranges and shares:
            raise ConfigError(
                "--workers and --shard do not work with search.ranges, whose trials depend on "
                "earlier scores; remove them and start the command several times with --storage"
            )
        title = f"Search, mode {config.adapt.mode} (%)"
        if isinstance(config, BabyAIConfig):
            if shares or options.samples is not None:
                name = "workers" if shares else "samples"
                raise ConfigError(f"--{name} is only for text-to-text tasks; remove it")
            names = config.adapt.levels if options.tasks == "dev" else options.tasks.split(",")
            with raised_as(ConfigError, "adapt.levels or --tasks", LevelError):
                names = check_levels(names)
            jobs = [FewShotJob(level, 0, seed) for level in names for seed in config.adapt.seeds]
            skills = inventory_folder(options.source)
            folder = Path(options.out or skills.absolute().parent / f"search-{config.adapt.mode}")
            check_folder(folder, dump_config(config), inventory_digest(skills))
            work = CommandTrials(config, options.source, tuple(jobs))
        else:
            chosen = {"samples": read_samples(options.samples), "allow_seen": options.allow_seen}
            chosen |= {"backbone": options.backbone, "splits": ("dev",)}
            adaptation = Adaptation.load(config, options.source, options.tasks, **chosen)
            folder = Path(options.out or adaptation.folder(f"search-{config.adapt.mode}"))
            adaptation.check_folder(folder)
            if options.workers > 1:
                start_workers(options.workers, shard, command)
            adaptation.to_device(shard.number)
            work, jobs = AdaptationTrials(adaptation, shard), adaptation.jobs

    points = points_of(search)
    n_trials, n_tried = len(points) or search.trials, 0
    # The best trial is selected among all in the folder, including earlier grids.
    places = folder / "trials"
    found = finished_trials(places, work.results)
    trials, diverged = {trial_name(trial.values): trial for trial in found}, Diverged()
    with counting(status, "searching", n_trials * max(1, len(jobs))) as count:
        if shard.n_shards > 1:
            for values in points:
                work.run(values, places / trial_name(values), count, diverged)
            part = f"part {shard.number} of {shard.n_shards}"
            status.print(f"{part} has finished; repeat the command without --shard for the table")
            diverged.report()
            return

        def keep(trial: Trial) -> None:
            name = trial_name(trial.values)
            trials.pop(name, None)  # trials of this start come last, in order
            if trial.results:
                trials[name] = trial
                write_trials(folder / "trials.csv", list(trials.values()))
                write_text(folder / "best.yaml", best_fragment(list(trials.values())))

        def evaluate(values: Values) -> tuple[float, TrialResults]:
            nonlocal n_tried
            name = trial_name(values)
            work.run(values, places / name, count, diverged)
            trial = Trial(values, work.results(places / name))
            n_tried += 1
            keep(trial)
            said = f"dev {100 * trial.score:.1f}" if trial.results else "diverged"
            status.print(f"{n_tried} of {n_trials}: {name}: {said}")
            return trial.score if trial.results else -math.inf, trial.results

        refusal = ConfigError(
            f"another mttl search is writing to '{folder}'; wait for it, or choose another folder "
            "with --out"
        )
        with locked(folder / ".lock", refusal):
            if search.ranges:
                storage, origin, place = folder / "optuna.journal", "", ""
                if options.storage:
                    storage, origin = options.storage, origin_of(folder, *work.may_change)
                    place = f"{platform.node()}:{folder.resolve()}"
                study = open_study(search, jobs, storage, origin)
                if options.storage:
                    status.print(f"study {study.study_name}: {len(study.trials)} trials so far")
                for values, results in search_ranges(search, evaluate, study, place):
                    keep(Trial(values, results))
            for values in points:
                evaluate(values)
    if trials:
        console.print(trials_table(list(trials.values()), title))
        console.print(f"The best settings are in {folder / 'best.yaml'}", highlight=False)
    diverged.report()


def points_of(search: Search) -> list[Values]:
    """Return the trials that do not depend on others; the last setting of a grid varies fastest."""
    combinations = itertools.product(*search.grid.values()) if search.grid else ()
    grid = [dict(zip(search.grid, values, strict=True)) for values in combinations]
    return search.points or grid


def check_search(config: Config | BabyAIConfig) -> Search:
    """Return the search settings; raises a `ConfigError` if a trial is invalid."""
    search = config.search
    if not search.names:
        raise ConfigError(
            "search.grid, search.points and search.ranges are empty; add a file to -c, such as "
            "crossfit.yaml+search/mhr.yaml, or set -k 'search.grid={adapt.lr: [1e-3, 1e-4]}'"
        )
    ends = [{name: getattr(x, end) for name, x in search.ranges.items()} for end in ("low", "high")]
    for values in points_of(search) or ends:
        with raised_as(ConfigError, f"section search, trial {trial_name(values)}", ConfigError):
            with_settings(config, values)
    return search
