"""Check names of runs, tasks, files and levels before PyTorch is imported.

Unreadable files are skipped here; the command reports them.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from envs.levels import file_name
from mttl.checkpoints.inventory_files import inventory_folder
from mttl.io.errors import (
    CheckpointError,
    ConfigError,
    MttlError,
    TaskError,
    nearest,
    raised_as,
    some,
)
from mttl.io.reading import read_json
from mttl.tasks.folder import Gym

if TYPE_CHECKING:
    from mttl.config.babyai_schema import BabyAIConfig
    from mttl.config.schema import Config

# Set by launchers of several processes; only the first process creates the folder.
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


def run_tasks(run: str | Path) -> list[str]:
    """Return the tasks of a trained run; empty if its list cannot be read."""
    folder = inventory_folder(run)
    with suppress(MttlError):
        return [str(name) for name in read_json(folder / "tasks.json", CheckpointError, list)]
    return []


def has_policies(run: str | Path) -> bool:
    """Return whether the tasks of a run are levels, each with a policy."""
    with suppress(MttlError, TypeError):
        facts = read_json(inventory_folder(run) / "meta.json", CheckpointError, dict)
        return "policy" in facts.get("settings", ())
    return False


def check_run_task(task: str | None, *runs: str | Path) -> None:
    """Raise an error for a folder without an inventory, or if no run has the task or level."""
    known = [run_tasks(run) for run in runs]
    tasks = [name for names in known for name in names]
    if task is not None and all(known) and task not in tasks:
        named = ", ".join(f"'{run}'" for run in runs)
        what = "level" if all(map(has_policies, runs)) else "task"
        advice = nearest(task, tasks) or f" It has {some(tasks)}."
        own = f"*/models/{task}-*-*" if what == "task" else f"*/models/{file_name(task)}-*"
        if kept := [folder for run in runs for folder in Path(run).glob(own)]:
            advice = f" Its adapted model is in '{kept[0]}': name it, or add it by --adapted."
        raise TaskError(f"{named} has no {what} '{task}'.{advice}")


def gym_with(folder: str, tasks: Sequence[str], split: str, samples: Sequence[int]) -> Gym:
    """Return a gym after checking that it has a file for each task and few-shot sample."""
    from mttl.config.load import resolve_folder  # slow to import

    gym = Gym(resolve_folder(folder))
    for task in tasks:
        for sample in samples:
            gym.file(task, split, sample)
    return gym


def check_routing(*runs: str | Path) -> None:
    """Raise a `CheckpointError` if a run has no record of its routing."""
    for run in runs:
        files = [Path(run) / "plots" / name for name in ("routing.npz", "token_routing.npz")]
        # A run made from a library has only skills; its routers report a missing record.
        if not any(os.path.lexists(file) for file in [*files, Path(run) / "skills"]):
            raise CheckpointError(
                f"'{files[0]}' does not exist. Name the folder of a finished run: training writes "
                "this file last. Finish an interrupted run with mttl train --resume"
            )


def check_training(config: "Config | BabyAIConfig", *, resume: bool) -> None:
    """Check the folder, tasks and levels of a training."""
    from mttl.checkpoints.run_folder import RunFolder, check_place
    from mttl.config.babyai_schema import BabyAIConfig
    from mttl.config.load import resolve_folder

    if not any(name in os.environ for name in RANKS):
        check_place(RunFolder(Path(config.run.dir) / config.run.name), resume=resume)
    if isinstance(config, BabyAIConfig):
        check_levels(config.rl.levels, "section rl")
        return
    if config.run.start is not None:
        inventory_folder(config.run.start)
    check_tasks(config)
    backbone = config.backbone
    if backbone.kind == "pretrained" and not resolve_folder(backbone.name).is_dir():
        from mttl.models.model_names import check_model_name

        check_model_name("backbone.name", backbone.name)


def check_tasks(config: "Config") -> None:
    """Check the training tasks, unless they are built from a task file."""
    if config.data.tasks is None:
        from mttl.data.chosen_tasks import training_tasks

        training_tasks(config)


def check_adaptation(config: "Config | BabyAIConfig", options: Namespace) -> None:
    """Check the run, the new tasks or levels, and the few-shot samples of an adaptation."""
    tasks, seen = options.tasks, run_tasks(options.source)  # before slow imports
    from mttl.adaptation.plan import new_tasks, read_samples
    from mttl.config.babyai_schema import BabyAIConfig
    from mttl.data.chosen_tasks import open_gym

    if isinstance(config, BabyAIConfig):
        levels = config.adapt.levels if tasks in ("test", "dev") else tasks.split(",")
        levels = check_levels(levels, "--tasks")
        known = [level for level in levels if level in seen]
        if known and not options.allow_seen:
            raise TaskError(
                f"the run was trained on {', '.join(known)}. Choose other levels, or allow trained "
                "ones by --allow-seen"
            )
    elif config.data.tasks is None:
        gym = open_gym(config)
        for task in new_tasks(tasks, config.data, gym, seen, allow_seen=options.allow_seen):
            for sample in read_samples(options.samples) or ():
                gym.file(task, "train", sample)


def check_levels(levels: Sequence[str], where: str) -> list[str]:
    """Return the names of levels, and import classes that the user named.

    Raises:
        ConfigError: If a level is unknown, or its class unsuitable.
    """
    from envs.levels import LevelError, find_level
    from mttl.plugins.classes import LEVELS, find_class

    with raised_as(ConfigError, where, LevelError, ImportError):
        for level in levels:
            if ":" in level:
                find_class(LEVELS, level, trusted=True)
        return [find_level(level).name for level in levels]
