"""Search for settings of adaptation on development tasks."""

import math
from collections.abc import Sequence
from pathlib import Path

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
from mttl.adaptation.search_training import search_training
from mttl.adaptation.settings import with_settings
from mttl.adaptation.shard import Shard, start_workers
from mttl.checkpoints.run_folder import RunFolder, check_still_there
from mttl.config.schema import Config, Search
from mttl.io.errors import ConfigError
from mttl.io.files import write_text
from mttl.runtime.command import make_console, only_warnings
from mttl.runtime.progress_bar import counting


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
    if search.trains:
        given = {"--from": source, "--samples": samples, "--backbone": backbone}
        given |= {"--allow-seen": allow_seen or None, "--tasks": None if tasks == "dev" else tasks}
        given |= {"--workers": workers > 1 or None, "--shard": shard.n_shards > 1 or None}
        useless = [name for name, value in given.items() if value is not None]
        if useless:
            raise ConfigError(
                f"{', '.join(useless)} would change nothing: settings of training "
                f"({', '.join(search.names)}) are searched by trainings, on the tasks of training; "
                "leave them out"
            )
        search_training(config, out)
        return
    if source is None:
        raise ConfigError(
            f"{', '.join(search.names)} are of adaptation: name a trained run with --from RUN"
        )
    if search.ranges and (workers > 1 or shard.n_shards > 1):
        raise ConfigError(
            "--workers and --shard share the trials of search.grid or search.points: a trial of "
            "search.ranges is drawn from the scores of those before. Leave them out"
        )

    # Which tasks, and where to.
    adaptation = Adaptation.of(
        config,
        source,
        tasks,
        samples=read_samples(samples),
        allow_seen=allow_seen,
        splits=("dev",),
        backbone=backbone,
    )
    name = f"search-{config.adapt.mode}"
    folder = Path(out) if out else adaptation.folder(name)
    adaptation.check_folder(folder, config)
    points = search.points or (grid_points(search.grid) if search.grid else [])
    if workers > 1:
        start_workers(workers, shard, command)
    adaptation.to_device(shard.number)
    n_trials = len(points) or search.trials
    # The best is sought among all trials of the folder, those of earlier grids too.
    earlier = finished_trials(folder / "trials", adaptation.jobs)
    trials = {trial_name(trial.values): trial for trial in earlier}
    tried: list[str] = []
    diverged = Diverged()

    with counting(status, "searching", n_trials * len(adaptation.jobs)) as count:

        def run(values: Values) -> Results:
            changed, place = with_settings(config, values), folder / "trials" / trial_name(values)
            note_values(place, values)
            with Results(place, shard).writing() as results:
                for job in shard.share(adaptation.jobs):
                    if job not in results.finished:
                        with diverged.noted(f"{trial_name(values)}: {job}"):
                            results.add(adaptation.run_job(job, changed, score_test=False))
                    count.advance()
            return results

        def evaluate(values: Values) -> float:
            results, name = run(values), trial_name(values)
            # Those of this start stand last, in their order.
            trials.pop(name, None)
            tried.append(name)
            if any(job not in results.finished for job in adaptation.jobs):
                status.print(f"{len(tried)} of {n_trials}: {name}: diverged")
                return -math.inf
            trials[name] = Trial(values, tuple(results.finished[job] for job in adaptation.jobs))
            known = list(trials.values())
            write_trials(folder / "trials.csv", known)
            write_text(folder / "best.yaml", best_fragment(known))
            score = trials[name].score
            status.print(f"{len(tried)} of {n_trials}: {name}: dev {100 * score:.1f}")
            return score

        if shard.n_shards > 1:
            for values in points:
                run(values)
            status.print(
                f"part {shard.number} of {shard.n_shards} has ended; start without --shard"
            )
            diverged.report()
            return
        for values in points:
            evaluate(values)
        if search.ranges:
            search_ranges(
                search.ranges,
                evaluate,
                n_trials=n_trials,
                seed=search.seed,
                jobs=adaptation.jobs,
                journal=folder / "optuna.journal",
            )

    check_still_there(RunFolder(folder))
    if trials:
        console.print(trials_table(list(trials.values()), f"Search, mode {config.adapt.mode} (%)"))
        console.print(f"The best settings are in {folder / 'best.yaml'}", highlight=False)
    diverged.report()


def check_search(config: Config) -> Search:
    """Return what to search, or say what is wrong with it before anything runs."""
    search = config.search
    if not (search.grid or search.points or search.ranges):
        raise ConfigError(
            "search.grid, search.points and search.ranges are empty: there is nothing to try. Add "
            "a file to -c, such as crossfit.yaml+search/mhr.yaml, or "
            "-k 'search.grid={adapt.lr: [1e-3, 1e-4]}'"
        )
    lows = {name: bounds.low for name, bounds in search.ranges.items()}
    highs = {name: bounds.high for name, bounds in search.ranges.items()}
    bounds = (lows, highs) if search.ranges else ()
    for values in search.points or (grid_points(search.grid) if search.grid else bounds):
        try:
            with_settings(config, values)
        except ConfigError as error:
            raise ConfigError(f"section search: the trial {trial_name(values)}: {error}") from None
    return search
