"""Adaptation of trained policies to new levels: `mttl adapt` for BabyAI."""

import copy
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.table import Table

from envs.interface import check_levels
from envs.levels import LevelError, file_name
from mttl.adaptation.adapted_model import adapted_sections
from mttl.adaptation.modes import TRAINED_ROLES, adapted_router, own_skills, require_trainable
from mttl.adaptation.plan import FewShotJob, check_folder
from mttl.adaptation.resumable_jobs import ResumableJobs
from mttl.adaptation.shard import Shard
from mttl.assembly.saved_settings import read_settings
from mttl.babyai.build_policy import PolicySettings, fresh_policies, load_policies
from mttl.babyai.evaluate import episode_results, play_levels
from mttl.babyai.policy_module import ROLLOUTS
from mttl.babyai.rl.learning_curve import episodes_to
from mttl.babyai.train import environment_errors, learning_of
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.run_callbacks import check_weights
from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.saved_inventory import read_inventory, save_adapted_inventory
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import dump_config
from mttl.config.section import AdaptMode, RowInit
from mttl.io.errors import ConfigError, raised_as
from mttl.io.files import new_folder, write_text
from mttl.io.record import Record
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.loggers import MetricsFile
from mttl.training.optim import ROUTERS
from mttl.training.predictions import Result, write_results
from mttl.training.progress import TrainingProgress
from mttl.training.token_balance import BiasBalancing

CHOICES = ("greedy", "sampled")
FOR_TEXT = {"samples": None, "reference": None, "workers": 1, "shard": Shard(), "backbone": None}


class LevelResult(Record):
    """The result of one adaptation.

    Attributes:
        greedy: Success rate on the evaluation episodes with the most probable actions.
        sampled: Success rate with sampled actions.
        greedy_steps: Mean length of episodes with the most probable actions.
        sampled_steps: Mean length of episodes with sampled actions.
        episodes: Number of episodes played for the adaptation.
        frames: Number of steps of these episodes.
        solved_after: Number of episodes until the level was solved; None if it was not.
        n_trained: Number of trained parameters.
    """

    level: str
    seed: int
    mode: str
    greedy: float
    sampled: float
    greedy_steps: float
    sampled_steps: float
    episodes: int
    frames: int
    solved_after: int | None
    n_trained: int

    @property
    def job(self) -> FewShotJob:
        """The level and the seed."""
        return FewShotJob(self.level, 0, self.seed)


def level_table(results: Sequence[LevelResult], title: str) -> Table:
    """Return a table with a row per level: success (%) and episodes to solve it, over seeds."""
    headings = ("seeds", *CHOICES, "episodes", "solved after")
    table = TextTable(title).words("level").numbers(*headings)
    for level in dict.fromkeys(result.level for result in results):
        rows = [result for result in results if result.level == level]
        solved = [row.solved_after for row in rows if row.solved_after is not None]
        after = f"{fmean(solved):,.0f}" if solved else "–"
        if solved and len(solved) < len(rows):
            after += f" ({len(solved)} of {len(rows)})"
        rates = [f"{100 * fmean(getattr(row, name) for row in rows):.1f}" for name in CHOICES]
        episodes = f"{fmean(row.episodes for row in rows):,.0f}"
        table.add_row(level, str(len(rows)), *rates, episodes, after)
    return table


def adapt_run(config: BabyAIConfig, options: Namespace, command: Sequence[str]) -> None:
    """Adapt a run's policies to each new level separately, and print a table.

    Each finished job is a line of ``results.jsonl`` in the folder and is not repeated.

    Raises:
        ConfigError: If an option is for text, levels are missing, or earlier results have other
            settings.
        CheckpointError: If the run has no policies.
        TrainingError: If an environment fails; or, after the other jobs, if some diverged.
    """
    for name, default in FOR_TEXT.items():
        if getattr(options, name) != default:
            raise ConfigError(f"--{name} is only for text-to-text tasks; leave it out")
    levels = None if options.tasks in ("test", "dev") else options.tasks.split(",")
    with raised_as(ConfigError, "--tasks" if levels else "adapt.levels", LevelError):
        names = check_levels(levels or config.adapt.levels)
    model, _ = load_policies(options.source)
    skills = read_inventory(options.source).folder
    folder = Path(options.out or skills.absolute().parent / f"adapt-{config.adapt.mode}")
    if not (folder / "results.jsonl").is_file():  # the settings of an adaptation that failed
        (folder / "config.yaml").unlink(missing_ok=True)
    shared = ("trainer.precision", "trainer.gradient_clip_val")
    check_folder(folder, dump_config(config), inventory_digest(skills), shared=shared)
    status = Console(stderr=True)
    jobs = [FewShotJob(level, 0, seed) for level in names for seed in config.adapt.seeds]
    results = ResumableJobs(folder / "results.jsonl", LevelResult)

    def saved_at(job: FewShotJob) -> Path | None:
        name = f"{file_name(job.task)}-{job.seed}"
        return folder / "models" / name if options.save else None

    def work(job: FewShotJob, on_step: Callable[[], object]) -> LevelResult:
        rows = MetricsFile(folder / "curves" / f"{file_name(job.task)}-{job.seed}.csv")
        return _run_job(config, model, options.source, job, rows, status, saved_at(job))

    def shown(result: LevelResult) -> str:
        return f"success {100 * result.greedy:.1f} % greedy, {100 * result.sampled:.1f} % sampled"

    with environment_errors("Finished jobs are kept; run the command again to continue"):
        how: dict[str, Any] = {"doing": "adapting", "shown": shown, "live": False}
        again = [job for job in jobs if (kept := saved_at(job)) and not kept.exists()]
        results.run(jobs, work, status, again=again, **how).report()
    title = f"Adaptation to new levels, mode {config.adapt.mode} (success, %)"
    make_console().print(level_table([results.finished[job] for job in jobs], title))
    if options.save:
        shown_by = f"mttl babyai film {saved_at(jobs[0])}"
        make_console().print(f"Film an adapted policy: {shown_by}", highlight=False, soft_wrap=True)


def adapt_policies(
    model: ComposedModel, mode: AdaptMode, *, init: RowInit = "mean"
) -> ComposedModel:
    """Prepare trained policies for a new level, in place, and return them.

    They get a router for one task, and parameters that the mode does not train are frozen. Token
    routers count as router and their experts as skills. Modes are those of
    `mttl.adaptation.modes.apply_mode`, with the common parameters as the backbone;
    ``from_scratch`` needs a new model (see `mttl.babyai.build_policy.fresh_policies`). ``init`` is
    that of `TaskRouter.for_new_tasks`.

    Raises:
        ConfigError: If the mode trains a router without trainable parameters.
    """
    token_routers = (layer.router for layer in model.token_layers().values())
    require_trainable(mode, *token_routers, model.router)
    router = adapted_router(model.router, mode, 1, init=init)
    if own := own_skills(model.router, router):
        model.inventory.reset_skills(torch.tensor(own))
    model.router = router.to(model.device)
    roles = TRAINED_ROLES[mode]
    for module in model.modules():  # an inner role takes precedence
        if role := getattr(module, "role", None):
            module.requires_grad_(("router" if role in ROUTERS else role) in roles)
    return model


def _run_job(
    config: BabyAIConfig,
    trained: ComposedModel,
    source: str | Path,
    job: FewShotJob,
    rows: MetricsFile,
    status: Console,
    save: Path | None,
) -> LevelResult:
    """Return the result of an adaptation to one level, and save the policy if a folder is given."""
    level, seed = job.task, job.seed
    pl.seed_everything(seed, verbose=False)
    rl, settings = config.rl, config.adapt
    if settings.mode == "from_scratch":
        model = fresh_policies(source, [level])
    else:
        model = adapt_policies(copy.deepcopy(trained), settings.mode, init=settings.init)
    model.train()
    n_trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    if n_trained:
        _learn(config, model, job, rows, status)
    scores, found = {}, list[Result]()
    for choose in CHOICES:
        how = rl.evaluation.model_dump(exclude={"choose"})
        episodes = play_levels(model, [level], status, choose=choose, **how)
        scores[choose] = float(episodes.success.mean())
        scores[f"{choose}_steps"] = float(episodes.steps.mean())
        found += episode_results(episodes, [level], choose, seed)
    if save:
        origin = read_inventory(source)
        of_model = read_settings(origin, PolicySettings)
        of_model = of_model.model_copy(update=adapted_sections(of_model, model.router))
        with new_folder(save, replace=True) as new:
            files = RunFolder(new)
            save_adapted_inventory(
                *(files.skills, model, level, origin),
                place=save / files.skills.name,
                backbone_trained=True,
                settings=of_model.model_dump(mode="json"),
            )
            write_text(files.config, dump_config(config))
            write_results(files.results, found)
    counts = [row for row in rows.rows.values() if "episodes" in row]
    known = [row for row in counts if f"success/{level}" in row]
    played = np.array([row["episodes"] for row in known], dtype=int)
    rates = np.array([row[f"success/{level}"] for row in known]).reshape(-1, 1)
    return LevelResult(
        **{"level": level, "seed": seed, "mode": settings.mode},
        **scores,
        episodes=int(counts[-1]["episodes"]) if counts else 0,
        frames=int(counts[-1]["frames"]) if counts else 0,
        solved_after=episodes_to(played, rates, threshold=rl.success_rate, smoothing=ROLLOUTS),
        n_trained=n_trained,
    )


def _learn(
    config: BabyAIConfig, model: ComposedModel, job: FewShotJob, rows: MetricsFile, status: Console
) -> None:
    """Train on rollouts or demonstrations as in training, with the learning rates of adaptation."""
    settings, section = config.adapt, config.trainer
    rates = {
        **{"lr": settings.lr, "router_lr": settings.router_lr, "backbone_lr": settings.lr},
        **{"schedule": "constant", "warmup": 0.0},
    }
    run = config.run.model_copy(update={"seed": job.seed})
    optim = config.optim.model_copy(update=rates)
    own = config.model_copy(update={"run": run, "optim": optim})
    learning = learning_of(own, model, [job.task])
    balancing = [BiasBalancing()] if model.token_layers() else []
    trainer = pl.Trainer(
        max_epochs=settings.n_updates,
        devices=1,
        **section.model_dump(include={"accelerator", "precision", "gradient_clip_val"}),
        callbacks=[TrainingProgress(status), learning.monitor, *balancing],
        logger=rows,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    with learning.open_data(trainer) as data:
        trainer.fit(learning.module, datamodule=data)
    if trainer.interrupted:
        raise KeyboardInterrupt
    check_weights(learning.module, trainer.global_step)
