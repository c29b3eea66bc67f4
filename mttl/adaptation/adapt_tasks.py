"""Adapt a trained inventory to new tasks, from a few examples each."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import read_samples
from mttl.adaptation.results import Results
from mttl.adaptation.score_table import few_shot_table
from mttl.adaptation.shard import Shard, start_workers
from mttl.config.schema import Config
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
    options = {"samples": read_samples(samples), "allow_seen": allow_seen, "backbone": backbone}
    adaptation = Adaptation.load(config, source, tasks, **options)
    folder = Path(out) if out else adaptation.folder(f"adapt-{config.adapt.mode}")
    adaptation.check_folder(folder)
    if workers > 1:
        start_workers(workers, shard, command)
    results, jobs = Results(folder, shard), shard.share(adaptation.jobs)
    n_starts = adaptation.n_starts

    def model_folder(job: FewShotJob) -> Path:
        return folder / "models" / f"{job.task}-{job.sample}-{job.seed}"

    def work(job: FewShotJob, on_step: Callable[[], object]) -> FewShotResult:
        return adaptation.run_job(job, on_step=on_step, save=model_folder(job) if save else None)

    def shown(result: FewShotResult) -> str:
        start = f"as {result.begun_as}" if result.begun_as else "at the mean row"
        begun = f"; begun {start}" if result.begun_as or n_starts > 1 else ""
        dev = "" if math.isnan(result.dev) else f"dev {100 * result.dev:.1f}, "
        return f"{dev}test {100 * result.test:.1f} (step {result.step}){begun}"

    adaptation.to_device(shard.number)
    diverged = results.run(
        *(jobs, work, status),
        doing="adapting",
        n_steps=n_starts * config.adapt.max_steps,
        shown=shown,
        again=[job for job in jobs if save and not model_folder(job).exists()],
    )
    ended = [results.finished[job] for job in adaptation.jobs if job in results.finished]
    title = f"Adaptation, mode {config.adapt.mode} (%)"
    if len(ended) < len(adaptation.jobs):
        title += f"; {len(ended)} of {len(adaptation.jobs)} jobs have ended"
    known = Results(Path(reference)).finished.values() if reference else ()
    console.print(few_shot_table(ended, title, list(known)))
    console.print(f"The results are in {folder}", highlight=False)
    if save:
        console.print(f"The adapted tasks are in {folder / 'models'}", highlight=False)
    diverged.report()
