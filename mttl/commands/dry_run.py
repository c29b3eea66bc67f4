"""What `mttl train --dry-run` prints: size, steps, memory and time of a training."""

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mttl.assembly.build_backbone import architecture, build_tokenizer
from mttl.assembly.build_router import with_factors
from mttl.assembly.model import build_model
from mttl.assembly.planning.fake_model import fake_model
from mttl.assembly.planning.memory_plan import GIB, MemoryPlan, needs_of
from mttl.assembly.trainer import processes_of, with_shared_batches
from mttl.commands.train_tasks import build_module
from mttl.config.schema import Config
from mttl.data.chosen_tasks import cache_folder, training_tasks
from mttl.data.data_module import TextToTextDataModule
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable
from mttl.training.task_embeddings import embed_tasks

WARM_UP, TIMED = 2, 4  # optimizer steps


def dry_run(config: Config) -> None:
    """Print the plan of a training; only the cache of tokenised rows is written."""
    n_processes, problem = processes_of(config.trainer)
    pl.seed_everything(config.run.seed, verbose=False)
    config = with_shared_batches(config, n_processes)
    gym, tasks = training_tasks(config)
    config = with_factors(config, gym, tasks)
    cached = {"cache_dir": str(cache_folder(config)), "global_batch_size": None}
    data = TextToTextDataModule(
        *(gym, tasks, build_tokenizer(config.backbone), config.data.model_copy(update=cached)),
        decoder_only=not architecture(config.backbone)[1].is_encoder_decoder,
        seed=config.run.seed,
    )
    rows, n_steps = _rows_per_step(config, n_processes), _count_steps(config, data, n_processes)
    model = fake_model(config, tasks)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained, total = sum(n for n, needed in sizes if needed), sum(n for n, _ in sizes)
    quantize = getattr(config.backbone, "quantize", None)
    plan = needs_of(config, tasks).plan(config.trainer.strategy, n_processes, quantize)
    problem = problem or _unmeasured(config, plan)
    table = TextTable(f"Dry run of '{config.run.name}'").words("", "")
    table.add("tasks", f"{len(tasks)} with {len(data.train_rows):,} training rows")
    table.add("parameters", f"{trained:,} of {total:,} are trained")
    table.add("rows per step", rows)
    table.add("steps", f"{n_steps:,}")
    table.add("memory", f"{plan.peak / GIB:.2f} GiB per process (parts: mttl plan)")
    seconds = 0.0 if problem else _seconds_per_step(config, data, tasks)
    shown = f"{seconds:.2g} s per step, {_duration(seconds * n_steps)} for all steps, measured with"
    shown += f" {WARM_UP + TIMED} steps on one device, without validation and scoring"
    table.add("time", f"not measured: {problem}" if problem else shown)
    make_console().print(table)


def _rows_per_step(config: Config, n_processes: int) -> str:
    """Return the rows of an optimizer step as a product."""
    data, n_parts = config.data, config.trainer.accumulate_grad_batches
    own = data.batch_size * n_parts
    if data.global_batch_size is not None:
        own = data.global_batch_size // n_processes
    most = "at most " if data.token_budget or data.packed_length else ""
    parts = f", in {n_parts} batches of at most {data.batch_size}" if n_parts > 1 else ""
    processes = f"{n_processes} process{'es' * (n_processes != 1)}"
    return f"{most}{own * n_processes:,} = {n_processes} × {own} ({processes}{parts})"


def _count_steps(config: Config, data: TextToTextDataModule, n_processes: int) -> int:
    """Return the number of optimizer steps; an estimate if the rows of batches vary."""
    section, n_rows = config.trainer, config.data.global_batch_size
    if n_rows is not None:
        per_epoch = math.ceil(len(data.train_rows) / n_rows)
    else:
        n_batches = math.ceil(len(data.train_dataloader()) / n_processes)
        per_epoch = math.ceil(n_batches / section.accumulate_grad_batches)
    epochs = section.max_epochs if section.max_epochs not in (None, -1) else math.inf
    most = section.max_steps if section.max_steps >= 0 else math.inf
    return int(min(per_epoch * epochs, most))


def _unmeasured(config: Config, plan: MemoryPlan) -> str:
    """Return why steps cannot be measured on one device; empty if they can."""
    if config.trainer.strategy == "fsdp2":
        return "the model is sharded (trainer.strategy fsdp2)"
    if config.moe is not None and config.moe.parallel:
        return "experts are distributed (moe.parallel)"
    on_gpu = config.trainer.accelerator != "cpu" and torch.cuda.is_available()
    if on_gpu and not plan.fits(torch.cuda.get_device_properties(0).total_memory / GIB):
        return "the GPU is too small"
    return ""


def _seconds_per_step(config: Config, data: TextToTextDataModule, tasks: Sequence[str]) -> float:
    built, watch = build_model(config, tasks), _Watch()
    module = build_module(config, built, {task: data.gym.metric(task) for task in tasks})
    embed_tasks(built.model, data)
    section = config.trainer
    kept = {"precision", "gradient_clip_val", "accelerator", "accumulate_grad_batches"}
    trainer = pl.Trainer(
        **section.model_dump(include=kept),
        devices=section.devices[:1] if isinstance(section.devices, list) else 1,
        max_steps=WARM_UP + TIMED,
        limit_val_batches=0,
        callbacks=[watch],
        use_distributed_sampler=False,
        **dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        ),
    )
    trainer.fit(module, datamodule=data)
    ends = [watch.ends[step] for step in range(WARM_UP, WARM_UP + TIMED + 1)]
    return median(later - before for before, later in pairwise(ends))


class _Watch(Callback):
    """Records when each optimizer step ends."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.setdefault(trainer.global_step, time.perf_counter())


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"about {minutes / 60:.1f} hours" if minutes > 90 else f"about {minutes:.1f} minutes"
