"""The folder that a run leaves behind. Other programs read it: its layout is a contract."""

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

from mttl import yaml12
from mttl.errors import CheckpointError, ConfigError


class RunFolder:
    """Paths inside a run's folder.

    Args:
        path: The folder itself: ``run.dir / run.name``.

    Attributes:
        config: The resolved configuration.
        metrics: What was logged, by step.
        checkpoints: Lightning's checkpoints.
        last: The checkpoint to resume from.
        best: The checkpoint with the best mean score.
        results: The score of every task.
        baselines: What copying the input and the most frequent answer score.
        predictions: The answers to every row.
        skills: The trained inventory: what later work starts from.
        plots: The arrays behind figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.csv"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"
        self.best = self.checkpoints / "best.ckpt"
        self.results = path / "results.csv"
        self.baselines = path / "baselines.csv"
        self.predictions = path / "predictions"
        self.skills = path / "skills"
        self.plots = path / "plots"


def step_to_start_from(folder: RunFolder, config_text: str, *, resume: bool) -> int:
    """Check that a new run overwrites nothing, or that an interrupted one can continue.

    Returns:
        The step to continue from; 0 for a new run.

    Raises:
        ConfigError: If a new run would overwrite an earlier one, or there is nothing to continue,
            or the configuration has changed outside its section ``trainer``.
        CheckpointError: If a file of the interrupted run is missing or damaged.
    """
    if not resume:
        # Other processes may come when the first has begun to write.
        if rank_zero_only.rank == 0 and folder.path.exists() and any(folder.path.iterdir()):
            raise ConfigError(
                f"the run folder '{folder.path}' exists already and is never overwritten. "
                "Continue that run with --resume, choose another name with "
                "-k run.name=NAME, or delete the folder"
            )
        return 0
    if not folder.last.is_file():
        raise ConfigError(
            f"there is nothing to resume: '{folder.last}' does not exist. Start without --resume"
        )
    if not folder.config.is_file():
        raise CheckpointError(
            f"'{folder.config}' is missing, so nothing tells which settings the run had. Copy it "
            "back, or start anew with -k run.name=NAME"
        )
    changed = changed_settings(folder.config.read_text(encoding="utf-8"), config_text)
    if changed:
        raise ConfigError(
            f"the run in '{folder.path}' was started with other settings: {', '.join(changed)}. "
            "Resume it with its own (only those of `trainer` may change), or start a new run with "
            "-k run.name=NAME"
        )
    try:
        checkpoint = torch.load(folder.last, map_location="cpu", weights_only=False)
        return int(checkpoint["global_step"])
    except (EOFError, KeyError, OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"'{folder.last}' is damaged ({error}). Start anew with -k run.name=NAME"
        ) from error


def changed_settings(
    before: str,
    now: str,
    ignore: tuple[str, ...] = ("trainer.", "adapt.", "search."),
    but: tuple[str, ...] = (),
) -> list[str]:
    """Return the dotted names of settings that differ, with both values.

    Args:
        before: A configuration as YAML.
        now: Another one.
        ignore: How the names begin that may differ; by default, of what training may change when
            it is resumed.
        but: Names that may not differ all the same.
    """
    first, second = _flat(yaml12.parse(before)), _flat(yaml12.parse(now))
    return [
        f"{name} ({first.get(name)} before, {second.get(name)} now)"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name) and (name in but or not name.startswith(ignore))
    ]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.removesuffix("."): tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat
