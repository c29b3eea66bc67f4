"""Folder of a run. Its layout is a public interface."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mttl.io import yaml12
from mttl.io.errors import CheckpointError, ConfigError, TrainingError
from mttl.io.reading import read_text
from mttl.runtime.processes import is_first_process

logger = logging.getLogger(__name__)
# Settings of a run's location, which do not affect training.
PLACE = ("run.dir", "run.name")


class RunFolder:
    """Paths inside a run's folder ``run.dir / run.name``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # resolved configuration
        self.metrics = path / "metrics.csv"  # metrics by step
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"  # state for resuming
        self.best = self.checkpoints / "best.ckpt"  # weights with the best mean score
        self.results = path / "results.csv"  # score per task
        self.baselines = path / "baselines.csv"  # scores of copying and of the most frequent answer
        self.predictions = path / "predictions"  # answers to all rows
        self.skills = path / "skills"  # inventory
        self.plots = path / "plots"  # data and figures

    def require_results(self) -> Path:
        """Return ``results.csv``; raises a `CheckpointError` with the reason if it is missing."""
        if self.results.is_file():
            return self.results
        cause = "is not a run, because it has no config.yaml"
        if (self.skills / "meta.json").is_file():
            cause = "has no results.csv, because nothing was scored (data.evaluate); remove it"
        elif self.config.is_file():
            cause = "has not finished; finish it with --resume, or remove it"
        raise CheckpointError(f"'{self.path}' {cause}")


def check_place(folder: RunFolder, *, resume: bool) -> None:
    """Raise a `ConfigError` if a new run would overwrite files, or there is nothing to resume."""
    if not resume and _visible(folder.path):
        raise ConfigError(
            f"the run folder '{folder.path}' already exists. Continue the run with --resume, "
            "choose another name with -k run.name=NAME, or delete the folder"
        )
    if resume and not folder.path.is_dir():
        raise ConfigError(f"cannot resume: '{folder.path}' does not exist. Start without --resume")


def step_to_start_from(folder: RunFolder, config_text: str, *, resume: bool) -> int:
    """Return the step to continue from: 0 for a new run or one without a saved state.

    Raises a `ConfigError` as for `check_place`, or if settings outside of ``trainer`` have changed,
    and a `CheckpointError` if a file of the interrupted run is missing or damaged.
    """
    # Other processes may find files that the first process has already written.
    if resume or is_first_process():
        check_place(folder, resume=resume)
    if not resume or not _visible(folder.path):
        return 0
    changed = changed_settings(read_text(folder.config, CheckpointError), config_text)
    if changed:
        raise ConfigError(
            f"the run in '{folder.path}' was started with other settings: {', '.join(changed)}. "
            "Resume it with the same settings (only `trainer` and moe.parallel may change), or "
            "start a new run with -k run.name=NAME"
        )
    if not os.path.lexists(folder.last):
        logger.warning("'%s' has no saved state yet, so it starts at step 0", folder.path)
        return 0
    from mttl.io.torch_file import load_torch

    state = load_torch(folder.last, "Copy it again, or start a new run with -k run.name=NAME")
    if folder.best.is_file():
        load_torch(folder.best, "Copy it again, or delete it to continue without those weights")
    else:
        scores = [own.get("best_model_score") for own in state["callbacks"].values()]
        score = next((score for score in scores if score is not None), None)
        if score is not None:
            logger.warning(
                "'%s' is missing, so the best weights so far (score %.1f %%) are lost. Training "
                "keeps the best weights of later validations, or the last ones",
                folder.best,
                100 * float(score),
            )
    return int(state["global_step"])


def check_still_there(folder: RunFolder) -> None:
    """Raise a `TrainingError` if a run's folder was removed during training."""
    if not folder.config.is_file():
        raise TrainingError(
            f"'{folder.path}' was removed during training and is incomplete. Delete it, and start "
            "the run again"
        )


def _visible(folder: Path) -> bool:
    """Return whether a folder has files other than locks and temporary files."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def changed_settings(
    before: str,
    now: str,
    ignore: tuple[str, ...] = ("trainer.", "adapt.", "search.", "moe.parallel"),
    but: tuple[str, ...] = (),
) -> list[str]:
    """Return the changed settings between two YAML texts, with both values.

    Settings whose names begin with one of ``ignore`` may change, except those in ``but``; the
    default is the settings that may change on resuming.
    """
    found = differences(dotted_settings(before), dotted_settings(now), "{} before, {} now")
    return [line for name, line in found if name in but or not name.startswith(ignore)]


def differing_settings(one: Path, other: Path, ignore: tuple[str, ...]) -> list[str]:
    """Return the settings in which two runs differ, with both values."""
    found = differences(settings_of(one), settings_of(other), "{} and {}")
    return [line for name, line in found if not name.startswith(ignore)]


def settings_of(run: Path) -> dict[str, Any]:
    """Return the settings of a run by dotted name; `CheckpointError` if it has none."""
    path = RunFolder(run).config
    if not path.is_file():
        raise CheckpointError(f"'{run}' is not a run, because it has no config.yaml")
    return dotted_settings(read_text(path, CheckpointError))


def differences(one: Any, other: Any, form: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each differing setting, and a line with both values."""
    first, second = _flat(one), _flat(other)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            yield name, f"{name} ({form.format(first.get(name), second.get(name))})"


def dotted_settings(text: str) -> dict[str, Any]:
    """Return the settings of a YAML configuration by dotted name."""
    try:
        return _flat(yaml12.parse(text))
    except yaml12.YAMLError as error:
        problem = yaml12.problem(error)
        raise CheckpointError(f"the config.yaml of the run is damaged ({problem})") from error


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, list) and tree and all(isinstance(value, dict) for value in tree):
        tree = dict(enumerate(tree))  # a list of sections, such as skills.kinds
    if not isinstance(tree, dict):
        return {prefix.removesuffix("."): tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat
