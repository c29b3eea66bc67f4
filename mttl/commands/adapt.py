"""Adapt a trained run to new tasks from a few examples each.

mttl adapt -c crossfit.yaml --from runs/crossfit
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks dev -k adapt.mode=router_only
mttl adapt -c crossfit.yaml --from runs/crossfit --tasks third_past --save
mttl adapt -c babyai.yaml --from runs/babyai --tasks GoToRedBall,GoToLocalS6N2

The configuration provides the sections data, generation, optim and adapt; backbone, skills and
router come from the run.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mttl.adaptation.shard import start_workers
from mttl.commands.options import CommandParser, command, task_overrides
from mttl.io.errors import ConfigError
from mttl.runtime.command import make_console, only_warnings

if TYPE_CHECKING:
    from mttl.adaptation.plan import FewShotJob, FewShotResult
    from mttl.config.schema import Config


def _declare(parser: CommandParser) -> None:
    parser.add_config(required=False)
    parser.add_run(tasks="test", out="results (RUN/adapt-MODE)")
    help = "save the adapted models in OUT/models/TASK-SAMPLE-SEED"
    parser.written.add_argument("--save", action="store_true", help=help)
    help = "adaptation results to compare with: adds the average relative gain"
    parser.read.add_argument("--reference", metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Adapt to the tasks, score and print a table."""
    reference = options.reference
    if reference and not any(Path(reference).glob("results*.jsonl")):
        raise ConfigError(f"--reference '{reference}' has no results*.jsonl of mttl adapt")
    run_jobs("adapt", "adaptation", options)


def run_jobs(name: str, work: str, options: argparse.Namespace) -> None:
    """Run `mttl adapt` or `mttl search`."""
    from mttl.commands.name_checks import check_adaptation
    from mttl.config.load import load_any_config
    from mttl.config.worlds import world_of

    source, overrides = options.source, options.override
    if options.tasks.endswith(".yaml"):  # a file of custom tasks
        overrides = [*task_overrides(options.tasks), *overrides]
        options.tasks = ",".join(tasks_to_adapt_to(options.tasks, source))
    config: Any = load_any_config(options.config or "", overrides, run=source)
    if source is not None:
        check_adaptation(config, options)
        from mttl.assembly.saved_settings import check_overrides

        check_overrides(source, config, overrides)
    command = [sys.executable, "-m", "mttl", name, *options.arguments]
    world_of(config).run(work, config, options, command)


def tasks_to_adapt_to(file: str, run: str | None) -> list[str]:
    """Return the tasks of a file with `side: test`, or else all that the run was not trained on."""
    from mttl.commands.name_checks import run_tasks
    from mttl.tasks.task_file import load_tasks

    tasks = load_tasks(file)
    seen = () if run is None else run_tasks(run)
    new = [name for name in tasks if name not in seen]
    return [name for name in new if tasks[name].side == "test"] or new


@only_warnings("mttl.data")  # every job reads small files
def adapt_run(config: "Config", options: argparse.Namespace, command: Sequence[str]) -> None:
    """Adapt to new text-to-text tasks, score and print a table."""
    from mttl.adaptation.modes import row_starts
    from mttl.adaptation.new_tasks import Adaptation
    from mttl.adaptation.plan import Results, read_samples
    from mttl.adaptation.score_table import few_shot_table
    from mttl.training.report import baseline_results

    console, status = make_console(), make_console(stderr=True)
    given = {"allow_seen": options.allow_seen, "backbone": options.backbone}
    samples, shard = read_samples(options.samples), options.shard
    adaptation = Adaptation.load(config, options.source, options.tasks, samples=samples, **given)
    folder = Path(options.out or adaptation.folder(f"adapt-{config.adapt.mode}"))
    adaptation.check_folder(folder)
    if options.workers > 1:
        start_workers(options.workers, shard, command)
    results, jobs = Results(folder, shard), shard.share(adaptation.jobs)
    n_starts = len(row_starts(adaptation.run.model.router, config.adapt))

    def model_folder(job: "FewShotJob") -> Path | None:
        name = f"{job.task}-{job.sample}-{job.seed}"
        return folder / "models" / name if options.save else None

    def work(job: "FewShotJob", on_step: Callable[[], object]) -> "FewShotResult":
        return adaptation.run_job(job, on_step=on_step, save=model_folder(job))

    def shown(result: "FewShotResult") -> str:
        start = f"as {result.begun_as}" if result.begun_as else "at the mean of the trained tasks"
        begun = f"; initial routing {start}" if result.begun_as or n_starts > 1 else ""
        dev = "" if math.isnan(result.dev) else f"dev {100 * result.dev:.1f}, "
        return f"{dev}test {100 * result.test:.1f} (step {result.step}){begun}"

    adaptation.to_device(shard.number)
    diverged = results.run(
        *(jobs, work, status),
        doing="adapting",
        n_steps=n_starts * config.adapt.max_steps,
        shown=shown,
        again=[job for job in jobs if (kept := model_folder(job)) and not kept.exists()],
    )
    ended = [results.finished[job] for job in adaptation.jobs if job in results.finished]
    title = f"Adaptation, mode {config.adapt.mode} (%)"
    if len(ended) < len(adaptation.jobs):
        title += f"; {len(ended)} of {len(adaptation.jobs)} jobs finished"
    known = Results(Path(options.reference)).finished.values() if options.reference else ()
    data = config.data.model_copy(update={"samples": [result.sample for result in ended]})
    metrics = {result.task: result.metric for result in ended}
    baselines = baseline_results(adaptation.gym, metrics, "test", data, 0) if ended else None
    console.print(few_shot_table(ended, title, list(known), baselines))
    console.print(f"The results are in {folder}", highlight=False)
    if options.save:
        console.print(f"The adapted models are in {folder / 'models'}", highlight=False)
    answers = not adaptation.run.form.texts
    if answers and options.save:
        one = f"mttl predict --adapted {model_folder(adaptation.jobs[0])} --in FILE --out FILE"
        console.print(f"Answer a table: {one}", highlight=False, soft_wrap=True)
    elif answers:
        console.print("To predict or serve with the adapted models, repeat the command with --save")
    diverged.report()
