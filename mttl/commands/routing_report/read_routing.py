"""Read the routing of a run, with the categories and factors of its tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mttl.analysis.palette import UNKNOWN
from mttl.analysis.routing_record import RoutingRecord, read_history, read_record
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.token_record import TokenRoutingRecord, read_token_record
from mttl.assembly import saved_settings
from mttl.assembly.model import Built, load_run
from mttl.babyai.build_policy import load_policies
from mttl.checkpoints.inventory_files import find_inventory
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.commands.name_checks import has_policies
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.capabilities import require_features
from mttl.config.load import load_any_config
from mttl.config.plugin_section import LEAVE
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.data.chosen_tasks import gym_folder, open_gym
from mttl.data.data_module import TextToTextDataModule
from mttl.io.errors import CheckpointError, TaskError
from mttl.io.reading import read_table
from mttl.library.library_run import MEMBERS, MemberList
from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.runtime.processes import device_of
from mttl.tasks.folder import Gym
from mttl.tasks.task_file import crossfit
from mttl.training.monitors import as_rows
from mttl.training.text_to_text import TextToTextModule


def token_view(folder: Path, tokens: TokenRoutingRecord) -> RoutingView:
    """Return each task's shares of its tokens among experts, as a routing record."""
    record = tokens.as_routing()
    categories, members = task_categories(folder, record.tasks), member_names(folder, record)
    return RoutingView(record, categories, members=members)


def read_view(
    folder: Path, adapted: Sequence[str] = (), backbone: str | None = None
) -> RoutingView:
    """Return the routing of a run and the categories of its tasks.

    If only tokens are routed, it is each task's share of tokens per expert.
    """
    tokens = read_token_record(folder)
    only = None if (folder / "plots" / "routing.npz").is_file() else tokens
    saved = None if only else find_inventory(folder) and read_inventory(folder)
    if saved and "backbone" in saved.meta["settings"]:
        built = saved_settings.read_settings(saved, saved_settings.ModelSettings, LEAVE)
        require_features(built, {"plots": "a figure of routing"})
    record = only.as_routing() if only else read_record(folder)
    if len(record.tasks) + len(adapted) < 2:
        raise TaskError(f"'{folder}' has only one task; figures compare at least two")
    if only and adapted:
        raise TaskError(f"'{folder}' routes only tokens; remove --adapted")
    trails: dict[str, np.ndarray] = {}
    if adapted:
        record = with_adapted(record, adapted, backbone)
        for name, place in zip(record.tasks[-len(adapted) :], adapted, strict=True):
            if (history := read_history(Path(place))) is not None:
                trails[name] = history.weights[:, :, 0]
    categories, members = task_categories(folder, record.tasks), member_names(folder, record)
    policies = isinstance(read_settings(folder), BabyAIConfig)
    return RoutingView(record, categories, trails, members, tokens, policies)


def member_names(folder: Path, record: RoutingRecord) -> tuple[str, ...]:
    """Return the names of the library members that are a run's skills, in order."""
    path = folder / MEMBERS
    if not path.is_file():
        return ()
    names = tuple(member.name for member in MemberList.read(path).members)
    return names if len(set(names)) == record.weights.shape[2] else ()


def with_adapted(
    record: RoutingRecord, adapted: Sequence[str], backbone: str | None
) -> RoutingRecord:
    """Return the routing of a run, followed by that of its adapted tasks.

    Adapted tasks with an existing name are named after their folder path.
    """
    tasks, weights, likely = [*record.tasks], [record.weights], [record.probabilities]
    for folder in adapted:
        if has_policies(folder):
            model, (task,) = load_policies(folder, record.folder)
        else:
            built = load_run(folder, run=record.folder, backbone=backbone)
            model, (task,) = built.model, built.tasks
        router = model.router
        row = as_rows(router.matrix()).astype(np.float64)
        if row.shape[::2] != record.weights.shape[::2]:
            own, whole = row.shape, record.weights.shape
            raise CheckpointError(
                f"'{folder}' has a router with {own[0]} groups and {own[2]} skills, but "
                f"'{record.folder}' has {whole[0]} and {whole[2]}; they cannot be compared"
            )
        parts = Path(folder).resolve().parts
        names = (task, *("/".join(parts[-n:]) for n in range(1, len(parts) + 1)))
        tasks.append(next(name for name in names if name not in tasks))
        weights.append(row)
        likely.append(as_rows(router.probabilities()))
    joined, likelihoods = np.concatenate(weights, axis=1), np.concatenate(likely, axis=1)
    changes = {"weights": joined, "probabilities": likelihoods, "history": None}
    return replace(record, tasks=tuple(tasks), **changes)


def task_categories(folder: Path, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the category of every task, from the gym's TASKS.csv or CrossFit's table.

    The category of a BabyAI level is its competencies.
    """
    settings = read_settings(folder)
    if settings is not None and not isinstance(settings, Config):
        from envs.levels import find_level

        return tuple(" ".join(find_level(task).competencies) or "other" for task in tasks)
    known = {name: info.category for name, info in crossfit().items()}
    known |= gym_column(settings, "category")
    return tuple(known.get(task, UNKNOWN) for task in tasks)


def task_factors(folder: Path, tasks: Sequence[str]) -> dict[str, list[str]]:
    """Return the known factors of the tasks: a value per task, by factor.

    They come from the column `factors` of TASKS.csv (``name=value name=value``). Factors without a
    value for every task, or with a single value, are omitted.
    """
    factors: list[dict[str, str]] = []
    column = gym_column(read_settings(folder), "factors")
    for task in tasks:
        pairs = [word.partition("=") for word in column.get(task, "").split()]
        if not all(name and value for name, _, value in pairs):
            raise TaskError(
                f"TASKS.csv: factors '{column[task]}' of '{task}' must be name=value name=value"
            )
        factors.append({name: value for name, _, value in pairs})
    shared = [name for name in factors[0] if all(name in each for each in factors)]
    values = {name: [each[name] for each in factors] for name in shared}
    return {name: given for name, given in values.items() if len(set(given)) > 1}


def read_settings(folder: Path) -> Section | None:
    """Return the configuration of a run, or None."""
    config = folder / "config.yaml"
    return load_any_config([str(config)], plugins=LEAVE) if config.is_file() else None


def gym_column(settings: Section | None, column: str) -> dict[str, str]:
    """Return the non-empty entries of a column of TASKS.csv, by task."""
    table = gym_folder(settings) / "TASKS.csv" if isinstance(settings, Config) else None
    rows = read_table(table, TaskError) if table is not None and table.exists() else []
    given = (row for row in rows if row.get("task") and row.get(column))
    return {row["task"].strip(): row[column].strip() for row in given}


class OpenRun(NamedTuple):
    """A trained run in evaluation mode, with the rows of its tasks."""

    config: Config
    built: Built
    gym: Gym
    module: TextToTextModule
    data: TextToTextDataModule


def open_run(
    run: Path, advice: str, backbone: str | None = None, seed: int = 0, **settings: Any
) -> OpenRun:
    """Return a run and its rows; ``settings`` replace those of the section ``data``.

    If the run has no configuration for text, the `CheckpointError` ends with ``advice``.
    """
    config = read_settings(run)
    if not isinstance(config, Config):
        why = "no config.yaml of text-to-text tasks, so its rows are unknown"
        why = "policies, which have no rows" if config else why
        raise CheckpointError(f"'{run}' has {why}: {advice}")
    built, gym = load_run(run, backbone=backbone), open_gym(config)
    module = TextToTextModule(
        *(built.model, built.tokenizer, {task: gym.metric(task) for task in built.tasks}),
        generation=config.generation,
        max_output_length=built.form.max_output_length,
    )
    data = TextToTextDataModule(
        *(gym, list(built.tasks), built.tokenizer),
        config.data.model_copy(update={"cache_dir": None} | settings),
        decoder_only=is_decoder_only(built.model.backbone),
        encoder=is_encoder(built.model.backbone),
        seed=seed,
        form=built.form,
    )
    return OpenRun(config, built, gym, module.to(device_of()).eval(), data)
