"""Adapt a trained inventory to new tasks, from a few examples each.

python pl_finetune.py -c crossfit.yaml --from runs/crossfit
python pl_finetune.py -c crossfit.yaml --from runs/crossfit --tasks dev -k adapt.mode=router_only

Of the configuration, the sections data, generation, optim and adapt are read; backbone, skills and
router are those of the run.
"""

import argparse
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mttl.checkpoint import read_inventory
from mttl.command import exit_with, make_console
from mttl.config.build import Built, build_optimization, load_run
from mttl.config.load import dump_config, load_config, resolve_folder, resolve_path
from mttl.config.schema import Config
from mttl.data.data_module import TextToTextDataModule
from mttl.data.gym import Gym
from mttl.errors import ConfigError, MttlError, TaskError
from mttl.files import write_text
from mttl.models.backbone import is_decoder_only
from mttl.training.adapt import adapted
from mttl.training.few_shot import FewShotJob, FewShotResult, fine_tune, score_batches
from mttl.training.few_shot_jobs import Results, Shard, few_shot_table, new_tasks, plan_jobs
from mttl.training.run_folder import changed_settings
from mttl.training.text_to_text import TextToTextModule

# Settings that have no part in a job's result: those of the run, and how often to repeat.
MAY_CHANGE = ("run.", "backbone.", "skills.", "router.", "trainer.", "adapt.seeds")


def main(arguments: list[str] | None = None) -> int:
    """Adapt, score and print a table; return the exit status."""
    options = parse(arguments)
    config = load_config(options.config, [text for group in options.override for text in group])
    console, status = make_console(), make_console(stderr=True)
    # Three small files per job: not worth a line each.
    logging.getLogger("mttl.data").setLevel(logging.WARNING)

    # What to adapt, and to which tasks.
    source = Path(options.source)
    form = read_inventory(source).meta["settings"]["data"]
    run = load_run(source)
    gym = Gym(resolve_folder(config.data.dir))
    tasks = new_tasks(
        options.tasks,
        resolve_path(config.data.partition),
        gym,
        run.tasks,
        skip_missing=config.data.skip_missing,
        allow_seen=options.allow_seen,
    )
    jobs = plan_jobs(gym, tasks, config.adapt.seeds)
    reference = read_reference(options.reference) if options.reference else {}
    folder = Path(options.out) if options.out else source / f"adapt-{config.adapt.mode}"
    check_settings(folder / "config.yaml", dump_config(config))
    if options.workers > 1:
        start_workers(options.workers, sys.argv[1:] if arguments is None else arguments)
    results = Results(folder, options.shard)
    run.model.to("cuda" if torch.cuda.is_available() else "cpu")

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=status,
        transient=True,
        disable=not status.is_terminal,
    ) as progress:
        todo = [job for job in options.shard.share(jobs) if job not in results.finished]
        bar = progress.add_task("adapting", total=len(todo) * config.adapt.max_steps)
        for number, job in enumerate(todo, start=1):
            result = run_job(run, job, config, gym, form, lambda: progress.advance(bar))
            results.add(result)
            progress.update(bar, completed=number * config.adapt.max_steps)
            status.print(
                f"{number} of {len(todo)}: {job.task}, sample {job.sample}, seed {job.seed}: "
                f"dev {100 * result.dev:.1f}, test {100 * result.test:.1f} (step {result.step})"
            )

    ended = [results.finished[job] for job in jobs if job in results.finished]
    title = f"Adaptation, mode {config.adapt.mode} (per cent)"
    if len(ended) < len(jobs):
        title += f"; {len(ended)} of {len(jobs)} jobs have ended"
    console.print(few_shot_table(ended, title, list(reference.values())))
    console.print(f"The results are in {folder}", highlight=False)
    return 0


def read_reference(name: str) -> dict[FewShotJob, FewShotResult]:
    """Read the results to compare with.

    Raises:
        ConfigError: If the folder holds none.
    """
    finished = Results(Path(name)).finished
    if not finished:
        raise ConfigError(f"--reference '{name}' holds no results*.jsonl of an adaptation")
    return finished


def start_workers(n_workers: int, arguments: list[str]) -> None:
    """Share the jobs among processes of this command and wait for them.

    Raises:
        MttlError: If one of them failed; what the others finished is kept.
    """
    threads = str(max(1, (os.cpu_count() or 1) // n_workers))
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--workers", "1"]
    workers = [
        subprocess.Popen(
            [*command, "--shard", f"{number}/{n_workers}"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        for number in range(1, n_workers + 1)
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


def run_job(
    run: Built, job: FewShotJob, config: Config, gym: Gym, form: dict[str, Any], on_step: Any
) -> FewShotResult:
    """Adapt to one sample of one task, score, and leave the run's model as it was."""
    pl.seed_everything(job.seed, verbose=False)
    settings = config.adapt
    metrics = {job.task: gym.metric(job.task)}
    data = TextToTextDataModule(
        gym,
        [job.task],
        run.tokenizer,
        decoder_only=is_decoder_only(run.model.backbone),
        samples=[job.sample],
        batch_size=settings.batch_size,
        eval_batch_size=config.data.eval_batch_size,
        max_rows=config.data.max_rows,
        seed=job.seed,
        **form,  # rows look as they did in training
    )
    optimization = replace(
        build_optimization(config.optim),
        lr=settings.lr,
        router_lr=settings.router_lr,
        backbone_lr=settings.lr,
        weight_decay=settings.weight_decay,
        schedule="linear",
        warmup=settings.warmup,
    )
    with adapted(run.model, settings.mode, init=settings.init) as model:
        module = TextToTextModule(
            model,
            run.tokenizer,
            metrics,
            optimization,
            label_smoothing=config.optim.label_smoothing,
            max_output_length=form["max_output_length"],
            num_beams=config.generation.num_beams,
            length_penalty=config.generation.length_penalty,
        ).to(next(model.parameters()).device)
        step, dev = fine_tune(
            module,
            data.train_dataloader(),
            data.evaluation_dataloader("dev"),
            n_steps=settings.max_steps,
            eval_every=settings.eval_every,
            gradient_clip_val=settings.gradient_clip_val,
            on_step=on_step,
        )
        test, rows = score_batches(module, data.evaluation_dataloader("test"))
        n_trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return FewShotResult(
        **{"task": job.task, "sample": job.sample, "seed": job.seed},
        metric=metrics[job.task],
        dev=dev,
        test=test,
        step=step,
        n_trained=n_trained,
        n_empty=sum(not row.prediction for row in rows),
    )


def check_settings(path: Path, text: str) -> None:
    """Write the settings of new results, or refuse to mix them with those of other settings."""
    if path.is_file():
        changed = changed_settings(path.read_text(encoding="utf-8"), text, MAY_CHANGE)
        if changed:
            raise ConfigError(
                f"the results in '{path.parent}' were made with other settings: "
                f"{', '.join(changed)}. Use those, or another folder with --out"
            )
    write_text(path, text)


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
        "--workers", type=positive, default=1, metavar="N", help="processes (%(default)s)"
    )
    parser.add_argument(
        "--shard", type=shard, default=Shard(), metavar="I/N", help="run the I-th of N parts only"
    )
    parser.add_argument("--allow-seen", action="store_true", help="take tasks of training too")
    parser.add_argument(
        "--reference", metavar="DIR", help="results to state the average relative gain over"
    )
    parser.add_argument("--out", metavar="DIR", help="results (RUN/adapt-MODE)")
    parser.add_argument(
        *("-k", "--set"),
        dest="override",
        action="append",
        nargs="+",
        default=[],
        metavar="section.key=value",
        help="settings that override the files",
    )
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of at least 1")
    return int(text)


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
