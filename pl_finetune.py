"""Adapt a trained inventory to new tasks, from a few examples each.

python pl_finetune.py -c crossfit.yaml --from runs/crossfit
python pl_finetune.py -c crossfit.yaml --from runs/crossfit --tasks dev -k adapt.mode=router_only
python pl_finetune.py -c babyai.yaml --from runs/babyai --tasks GoToRedBall,GoToLocalS6N2

Of the configuration, the sections data, generation, optim and adapt are read; backbone, skills and
router are those of the run.
"""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.new_tasks import Adaptation
from mttl.adaptation.plan import Shard, read_samples
from mttl.adaptation.results import Results
from mttl.adaptation.score_table import few_shot_table
from mttl.analysis.libraries import check_libraries
from mttl.command import add_overrides, exit_with, make_console, positive
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config
from mttl.config.schema import Config
from mttl.errors import ConfigError, MttlError, TaskError
from mttl.progress_bar import counting_bar


def main(arguments: list[str] | None = None) -> int:
    """Adapt, score and print a table; return the exit status."""
    options = parse(arguments)
    overrides = options.override
    config = load_any_config(options.config, overrides)
    if isinstance(config, BabyAIConfig):
        return adapt_policies(config, options)
    console, status = make_console(), make_console(stderr=True)
    # Three small files per job: not worth a line each.
    logging.getLogger("mttl.data").setLevel(logging.WARNING)

    # What to adapt, and to which tasks.
    adaptation = Adaptation.of(
        config,
        options.source,
        options.tasks,
        samples=read_samples(options.samples),
        allow_seen=options.allow_seen,
    )
    jobs = adaptation.jobs
    reference = read_reference(options.reference) if options.reference else {}
    name = f"adapt-{config.adapt.mode}"
    folder = Path(options.out) if options.out else adaptation.folder(name)
    adaptation.check_folder(folder, config)
    if options.workers > 1:
        given = sys.argv[1:] if arguments is None else arguments
        start_workers(options.workers, options.shard, given)
    results = Results(folder, options.shard)
    todo = [job for job in options.shard.share(jobs) if job not in results.finished]
    if todo:
        with results.writing():
            run_jobs(adaptation, config, todo, results, status)

    ended = [results.finished[job] for job in jobs if job in results.finished]
    title = f"Adaptation, mode {config.adapt.mode} (per cent)"
    if len(ended) < len(jobs):
        title += f"; {len(ended)} of {len(jobs)} jobs have ended"
    console.print(few_shot_table(ended, title, list(reference.values())))
    console.print(f"The results are in {folder}", highlight=False)
    return 0


def adapt_policies(config: BabyAIConfig, options: argparse.Namespace) -> int:
    """Adapt a run's policies to new levels and print a table; return the exit status.

    Raises:
        ConfigError: If an option is given that is for text-to-text tasks.
    """
    for name, default in (("samples", None), ("reference", None), ("workers", 1)):
        if getattr(options, name) != default:
            raise ConfigError(f"--{name} is for text-to-text tasks: leave it out")
    if options.shard.n_shards != 1:
        raise ConfigError("--shard is for text-to-text tasks: leave it out")
    check_libraries("gymnasium", "minigrid", "numba", extra="babyai")
    from mttl.babyai.level_results import level_table
    from mttl.babyai.new_levels import adapt_babyai

    results = adapt_babyai(
        config,
        options.source,
        levels=None if options.tasks == "test" else options.tasks.split(","),
        out=options.out,
        allow_seen=options.allow_seen,
    )
    title = f"Adaptation to new levels, mode {config.adapt.mode} (success in per cent)"
    make_console().print(level_table(results, title))
    return 0


def run_jobs(
    adaptation: Adaptation,
    config: Config,
    todo: Sequence[FewShotJob],
    results: Results,
    status: Console,
) -> None:
    """Run jobs one after another and keep their results.

    Args:
        adaptation: The model.
        config: How to adapt.
        todo: The jobs.
        results: Where they go.
        status: Where progress is shown.
    """
    adaptation.to_device()
    with counting_bar(status) as progress:
        bar = progress.add_task("adapting", total=len(todo) * config.adapt.max_steps)
        for number, job in enumerate(todo, start=1):
            result = adaptation.run_job(job, config, on_step=lambda: progress.advance(bar))
            results.add(result)
            progress.update(bar, completed=number * config.adapt.max_steps)
            status.print(
                f"{number} of {len(todo)}: {job.task}, sample {job.sample}, seed {job.seed}: "
                f"dev {100 * result.dev:.1f}, test {100 * result.test:.1f} (step {result.step})"
            )


def read_reference(name: str) -> dict[FewShotJob, FewShotResult]:
    """Read the results to compare with.

    Raises:
        ConfigError: If the folder holds none.
    """
    finished = Results(Path(name)).finished
    if not finished:
        raise ConfigError(f"--reference '{name}' holds no results*.jsonl of an adaptation")
    return finished


def start_workers(n_workers: int, shard: Shard, arguments: list[str]) -> None:
    """Share the jobs among processes of this command and wait for them.

    Args:
        n_workers: How many.
        shard: The part of the jobs that they share.
        arguments: Of this command.

    Raises:
        MttlError: If one of them failed; what the others finished is kept.
    """
    threads = str(max(1, (os.cpu_count() or 1) // n_workers))
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--workers", "1"]
    parts = [shard.part(number, n_workers) for number in range(1, n_workers + 1)]
    workers = [
        subprocess.Popen(
            [*command, "--shard", f"{part.number}/{part.n_shards}"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        for part in parts
    ]
    try:
        failed = [number for number, worker in enumerate(workers, 1) if worker.wait()]
    finally:
        for worker in workers:
            worker.terminate()
    if failed:
        raise MttlError(
            f"worker {', '.join(map(str, failed))} of {n_workers} failed; its message is above. "
            "Start again to run what is left"
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        *("-c", "--config"), required=True, metavar="FILE[+FILE...]", help="as for pl_train.py"
    )
    parser.add_argument(
        "--from", dest="source", required=True, metavar="RUN", help="the folder of a trained run"
    )
    parser.add_argument(
        "--tasks", default="test", help="test, dev, or names joined by commas (%(default)s)"
    )
    parser.add_argument(
        "--samples", metavar="N[,N...]", help="few-shot samples of every task (all)"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="processes that share the jobs, or those of --shard (%(default)s)",
    )
    parser.add_argument(
        "--shard", type=shard, default=Shard(), metavar="I/N", help="run the I-th of N parts only"
    )
    parser.add_argument("--allow-seen", action="store_true", help="take tasks of training too")
    parser.add_argument(
        "--reference", metavar="DIR", help="results to state the average relative gain over"
    )
    parser.add_argument("--out", metavar="DIR", help="results (RUN/adapt-MODE)")
    add_overrides(parser, "settings that override the files")
    return parser.parse_args(arguments)


def shard(text: str) -> Shard:
    """Read a part of the jobs."""
    number, _, n_shards = text.partition("/")
    if not (number.isdecimal() and n_shards.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' must have the form I/N, such as 1/4")
    try:
        return Shard(int(number), int(n_shards))
    except TaskError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    exit_with(main)
