"""Adapt a trained inventory to new tasks, from a few examples each."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import read_samples
from mttl.adaptation.results import Results
from mttl.adaptation.resumable_jobs import Diverged
from mttl.adaptation.score_table import few_shot_table
from mttl.adaptation.shard import Shard, start_workers
from mttl.config.schema import Config
from mttl.io.errors import ConfigError
from mttl.runtime.command import make_console, only_warnings


@only_warnings("mttl.data")  # of small files of every job
def adapt_run(
    config: Config,
    *,
    source: str,
    tasks: str,
    samples: str | None,
    shard: Shard,
    workers: int,
    command: Sequence[str],
    allow_seen: bool,
    reference: str | None,
    out: str | None,
    backbone: str | None,
    save: bool,
) -> None:
    """Adapt, score and print a table."""
    console, status = make_console(), make_console(stderr=True)

    # What to adapt, and to which tasks.
    adaptation = Adaptation.of(
        config,
        source,
        tasks,
        samples=read_samples(samples),
        allow_seen=allow_seen,
        backbone=backbone,
    )
    jobs = adaptation.jobs
    known = Results(Path(reference)).finished if reference else {}
    if reference and not known:
        raise ConfigError(f"--reference '{reference}' holds no results*.jsonl of an adaptation")
    name = f"adapt-{config.adapt.mode}"
    folder = Path(out) if out else adaptation.folder(name)
    adaptation.check_folder(folder, config)
    if workers > 1:
        start_workers(workers, shard, command)
    results = Results(folder, shard)
    models = folder / "models" if save else None
    todo = [
        job
        for job in shard.share(jobs)
        if job not in results.finished
        or (models is not None and not model_folder(models, job).exists())
    ]
    diverged = None
    if todo:
        adaptation.to_device(shard.number)
        diverged = run_jobs(adaptation, config, todo, results, status, models)

    ended = [results.finished[job] for job in jobs if job in results.finished]
    title = f"Adaptation, mode {config.adapt.mode} (%)"
    if len(ended) < len(jobs):
        title += f"; {len(ended)} of {len(jobs)} jobs have ended"
    if ended or not todo:
        console.print(few_shot_table(ended, title, list(known.values())))
    console.print(f"The results are in {folder}", highlight=False)
    if models is not None:
        console.print(f"The adapted tasks are in {models}", highlight=False)
    if diverged is not None:
        diverged.report()


def run_jobs(
    adaptation: Adaptation,
    config: Config,
    todo: Sequence[FewShotJob],
    results: Results,
    status: Console,
    models: Path | None,
) -> Diverged:
    """Run jobs one after another and keep their results, and what they learned in ``models``."""
    n_starts = adaptation.n_starts(config)

    def work(job: FewShotJob, on_step: Callable[[], object]) -> FewShotResult:
        save = model_folder(models, job) if models is not None else None
        return adaptation.run_job(job, config, on_step=on_step, save=save)

    def shown(result: FewShotResult) -> str:
        start = f"as {result.begun_as}" if result.begun_as else "at the mean row"
        begun = f"; begun {start}" if result.begun_as or n_starts > 1 else ""
        dev = "" if math.isnan(result.dev) else f"dev {100 * result.dev:.1f}, "
        return f"{dev}test {100 * result.test:.1f} (step {result.step}){begun}"

    n_steps = n_starts * config.adapt.max_steps
    return results.run(todo, work, status, doing="adapting", n_steps=n_steps, shown=shown)


def model_folder(models: Path, job: FewShotJob) -> Path:
    """Return where what a job has learned is kept."""
    return models / f"{job.task}-{job.sample}-{job.seed}"
