"""Search for settings of adaptation on development tasks, or of training on the tasks' own rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import read_samples
from mttl.adaptation.results import Results
from mttl.adaptation.resumable_jobs import Diverged
from mttl.adaptation.search import (
    Trial,
    Values,
    best_fragment,
    finished_trials,
    grid_points,
    note_values,
    trial_name,
    trials_table,
    write_trials,
)
from mttl.adaptation.search_ranges import search_ranges
from mttl.adaptation.search_training import TrainingTrials
from mttl.adaptation.settings import with_settings
from mttl.adaptation.shard import Shard, start_workers
from mttl.checkpoints.run_folder import RunFolder, check_still_there
from mttl.config.schema import Config, Search
from mttl.io.errors import ConfigError
from mttl.io.files import locked, write_text
from mttl.runtime.command import make_console, only_warnings
from mttl.runtime.progress_bar import Count, counting


@dataclass(frozen=True)
class AdaptationTrials:
    """Trials that are few-shot jobs, of which a part runs here."""

    adaptation: Adaptation
    folder: Path
    shard: Shard

    @property
    def title(self) -> str:
        """Of the table."""
        return f"Search, mode {self.adaptation.given.adapt.mode} (%)"

    def finished(self) -> list[Trial]:
        """Return the trials of the folder that have ended, those of earlier grids too."""
        return finished_trials(self.folder / "trials", self.adaptation.jobs)

    def run(
        self, values: Values, count: Count, diverged: Diverged
    ) -> tuple[FewShotResult, ...] | None:
        """Return the results of all jobs with some settings; None if one has none."""
        place, jobs = self.folder / "trials" / trial_name(values), self.adaptation.jobs
        trial = self.adaptation.changed(with_settings(self.adaptation.given, values))
        note_values(place, values)
        with Results(place, self.shard).writing() as results:
            for job in self.shard.share(jobs):
                if job not in results.finished:
                    with diverged.noted(f"{trial_name(values)}: {job}"):
                        results.add(trial.run_job(job, score_test=False))
                count.advance()
        known = results.finished
        return tuple(known[job] for job in jobs) if all(job in known for job in jobs) else None


@only_warnings("mttl.data")  # of small files of every job
def search_run(
    config: Config,
    *,
    source: str | None,
    tasks: str,
    samples: str | None,
    shard: Shard,
    workers: int,
    command: Sequence[str],
    allow_seen: bool,
    out: str | None,
    backbone: str | None,
) -> None:
    """Search, write what was found and print a table."""
    console, status = make_console(), make_console(stderr=True)
    search = check_search(config)
    named, shares = ", ".join(search.names), workers > 1 or shard.n_shards > 1
    if search.trains:
        given = {"--from": source, "--samples": samples, "--backbone": backbone}
        given |= {"--allow-seen": allow_seen or None, "--tasks": None if tasks == "dev" else tasks}
        given |= {"--workers": workers > 1 or None, "--shard": shard.n_shards > 1 or None}
        if useless := [name for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"{', '.join(useless)} would change nothing: settings of training ({named}) are "
                "searched by trainings, on the tasks of training; leave them out"
            )
        work: AdaptationTrials | TrainingTrials = TrainingTrials.of(config, out)
        jobs = []
    else:
        if source is None:
            raise ConfigError(f"{named} are of adaptation: name a trained run with --from RUN")
        if search.ranges and shares:
            raise ConfigError(
                "--workers and --shard share the trials of search.grid or search.points: a trial "
                "of search.ranges is drawn from the scores of those before. Leave them out"
            )
        options = {"samples": read_samples(samples), "allow_seen": allow_seen}
        adaptation = Adaptation.load(
            config, source, tasks, splits=("dev",), backbone=backbone, **options
        )
        folder = Path(out) if out else adaptation.folder(f"search-{config.adapt.mode}")
        adaptation.check_folder(folder)
        if workers > 1:
            start_workers(workers, shard, command)
        adaptation.to_device(shard.number)
        work, jobs = AdaptationTrials(adaptation, folder, shard), adaptation.jobs

    folder, points = work.folder, points_of(search)
    n_trials, n_tried = len(points) or search.trials, 0
    # The best is sought among all trials of the folder, those of earlier grids too.
    trials = {trial_name(trial.values): trial for trial in work.finished()}
    diverged = Diverged()
    with counting(status, "searching", n_trials * max(1, len(jobs))) as count:
        if shard.n_shards > 1:
            for values in points:
                work.run(values, count, diverged)
            part = f"part {shard.number} of {shard.n_shards}"
            status.print(f"{part} has ended; start without --shard")
            diverged.report()
            return

        def evaluate(values: Values) -> float:
            nonlocal n_tried
            results, name, score = work.run(values, count, diverged), trial_name(values), -math.inf
            n_tried += 1
            trials.pop(name, None)  # those of this start stand last, in their order
            if results is not None:
                trials[name] = Trial(values, results)
                score = trials[name].score
                write_trials(folder / "trials.csv", list(trials.values()))
                write_text(folder / "best.yaml", best_fragment(list(trials.values())))
            said = "diverged" if results is None else f"dev {100 * score:.1f}"
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
        console.print(trials_table(list(trials.values()), work.title))
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
