"""What `mttl train --dry-run` prints for policies: size, steps, memory and time of a training."""

import math
import os

import pytorch_lightning as pl
import torch

from envs.interface import check_levels
from mttl.assembly.trainer import processes_of, with_shared_slots
from mttl.babyai.build_policy import build_policies
from mttl.babyai.train import environment_errors, learning_of
from mttl.commands.comparison.stages import peak_memory
from mttl.commands.dry_run import TIMED, WARM_UP, StepTimes, print_plan, short_trainer
from mttl.config.babyai_schema import BabyAIConfig


@environment_errors("Nothing was written")
def dry_run(config: BabyAIConfig) -> None:
    """Print the plan of a training; nothing is written."""
    section, (n_processes, problem) = config.trainer, processes_of(config.trainer)
    pl.seed_everything(config.run.seed, verbose=False)
    levels, rl = check_levels(config.rl.levels), with_shared_slots(config.rl, n_processes)
    model = build_policies(config, levels)
    learning = learning_of(config.model_copy(update={"rl": rl}), model, levels)
    per_level = f"{rl.n_slots} environments, {rl.ppo.n_steps} steps of each per rollout"
    warm = timed = rl.ppo.n_epochs * rl.ppo.n_minibatches  # steps per rollout
    if rl.demonstrations:
        per_level, warm, timed = f"{rl.imitation.batch_size} demonstrations", WARM_UP, TIMED
    watch, on_cpu = StepTimes(), {"accelerator": "cpu", "precision": "32-true"}
    here = section.model_copy(update=on_cpu if problem else {})
    trainer = short_trainer(here, warm + timed, watch)
    memory = pace = f"not measured: {problem}"
    with learning.open_data(trainer) as data:
        per_epoch = math.ceil(len(data.loader) / (n_processes if rl.demonstrations else 1))
        n_steps = (section.max_epochs or 0) * per_epoch
        if section.max_steps > 0:
            n_steps = min(n_steps, section.max_steps)
        if not problem:
            trainer.fit(learning.module, datamodule=data)
            seconds = (watch.ends[warm + timed] - watch.ends[warm]) / timed
            minutes = seconds * n_steps / 60
            pace = f"{seconds:.2g} s per step, about {minutes:,.0f} minutes for all; "
            pace += f"from {warm + timed} steps on one device, without evaluation"
            mib = torch.cuda.max_memory_allocated() / 2**20 or peak_memory(os.getpid())
            memory = f"{mib / 2**10:.2f} GiB at the peak of these steps"
    first = {"levels": f"{len(levels)}: {', '.join(levels)}"}
    facts = {"per level": f"{n_processes} × {per_level}", "steps": f"{n_steps:,}"}
    print_plan(config.run.name, model, first, {**facts, "memory": memory, "time": pace})
