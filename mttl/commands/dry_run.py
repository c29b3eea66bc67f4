"""What `mttl train --dry-run` prints: size, steps, memory and time of a training."""

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning import Callback
from torch import nn

from mttl.assembly.build_backbone import build_tokenizer
from mttl.assembly.model import build_model
from mttl.assembly.planning.memory_plan import GIB, fake_model, needs_of
from mttl.assembly.trainer import processes_of, with_shared_batches
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands.train_tasks import build_module, dated, fitted, with_tasks
from mttl.config.schema import Config, Trainer
from mttl.data.chosen_tasks import cache_folder
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.models.backbone import is_decoder_only
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable
from mttl.training.task_embeddings import embed_tasks

WARM_UP, TIMED = 2, 4  # optimizer steps


def dry_run(config: Config) -> None:
    """Print the plan of a training; only the cache of tokenised rows is written."""
    n_processes, problem = processes_of(config.trainer)
    pl.seed_everything(config.run.seed, verbose=False)
    folder = RunFolder(Path(config.run.dir) / config.run.name)
    config = with_shared_batches(fitted(dated(config, folder, resume=False)), n_processes)
    config, gym, tasks, heads = with_tasks(config)
    model = fake_model(config, tasks, heads)
    cached = {"cache_dir": str(cache_folder(config)), "global_batch_size": None}
    data = TextToTextDataModule(
        *(gym, tasks, build_tokenizer(config.backbone), config.data.model_copy(update=cached)),
        decoder_only=is_decoder_only(model.backbone),
        seed=config.run.seed,
        form=PromptForm.of(config.data).model_copy(update={"task_heads": heads}),
    )
    quantize = getattr(config.backbone, "quantize", None)
    plan = needs_of(config, tasks, heads).plan(config.trainer.strategy, n_processes, quantize)
    rows, n_steps = _rows_and_steps(config, data, n_processes)
    if config.trainer.strategy == "fsdp2" or (config.moe is not None and config.moe.parallel):
        problem = problem or "the model is distributed over processes"
    elif torch.cuda.is_available() and config.trainer.accelerator != "cpu":
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        problem = problem or "the GPU is too small" * (not plan.fits(memory))
    pace = f"not measured: {problem}"
    if not problem:
        seconds = _seconds_per_step(config, data)
        pace = f"{seconds:.2g} s per step, about {seconds * n_steps / 60:,.0f} minutes for all; "
        pace += f"from {WARM_UP + TIMED} steps on one device, without validation and scoring"
    first = {"tasks": f"{len(tasks)} with {len(data.train_rows):,} training rows"}
    memory = f"{plan.peak / GIB:.2f} GiB per process (parts: mttl plan)"
    facts = {"rows per step": rows, "steps": f"{n_steps:,}", "memory": memory, "time": pace}
    print_plan(config.run.name, model, first, facts)


def print_plan(
    name: str, model: nn.Module, first: Mapping[str, str], facts: Mapping[str, str]
) -> None:
    """Print facts about a training, and the size of its model after the first ones."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained, total = sum(n for n, needed in sizes if needed), sum(n for n, _ in sizes)
    table = TextTable(f"Dry run of '{name}'").words("", "")
    for row in {**first, "parameters": f"{trained:,} of {total:,} are trained", **facts}.items():
        table.add(*row)
    make_console().print(table)


def _rows_and_steps(
    config: Config, data: TextToTextDataModule, n_processes: int
) -> tuple[str, int]:
    """Return the rows of a step as a product, and the number of steps (estimated for budgets)."""
    section, n_parts = config.data, config.trainer.accumulate_grad_batches
    own = section.batch_size * n_parts
    n_batches = math.ceil(len(data.train_dataloader()) / n_processes)
    per_epoch = math.ceil(n_batches / n_parts)
    if section.global_batch_size is not None:
        own = section.global_batch_size // n_processes
        per_epoch = math.ceil(len(data.train_rows) / section.global_batch_size)
    most = "at most " if section.token_budget or section.packed_length else ""
    parts = f", in {n_parts} batches of at most {section.batch_size}" if n_parts > 1 else ""
    processes = f"{n_processes} process{'es' * (n_processes != 1)}"
    limits = config.trainer.max_epochs, config.trainer.max_steps
    epochs, steps = (math.inf if limit in (None, -1) else limit for limit in limits)
    product = f"{most}{own * n_processes:,} = {n_processes} × {own} ({processes}{parts})"
    return product, int(min(per_epoch * epochs, steps))


def _seconds_per_step(config: Config, data: TextToTextDataModule) -> float:
    """Train a few steps on one device; return the median time."""
    built, watch = build_model(config, data.tasks, data.form.task_heads), StepTimes()
    module = build_module(config, built, {task: data.gym.metric(task) for task in data.tasks})
    embed_tasks(built.model, data)
    short_trainer(config.trainer, WARM_UP + TIMED, watch).fit(module, datamodule=data)
    ends = [watch.ends[step] for step in range(WARM_UP, WARM_UP + TIMED + 1)]
    return median(later - before for before, later in pairwise(ends))


def short_trainer(section: Trainer, n_steps: int, watch: Callback) -> pl.Trainer:
    """Return a silent trainer of some optimizer steps on one device."""
    kept = {"precision", "gradient_clip_val", "accelerator", "accumulate_grad_batches"}
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(
        **section.model_dump(include=kept),
        **dict.fromkeys(silent, False),
        devices=section.devices[:1] if isinstance(section.devices, list) else 1,
        max_steps=n_steps,
        limit_val_batches=0,
        callbacks=[watch],
        use_distributed_sampler=False,
    )


class StepTimes(Callback):
    """A callback that records when each optimizer step ends."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Record the time, when the device has finished the step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.setdefault(trainer.global_step, time.perf_counter())
