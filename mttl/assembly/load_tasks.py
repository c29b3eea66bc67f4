"""A run and the tasks that were adapted from it, each task with the model that answers it."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from mttl.assembly.model import Built, load_run
from mttl.assembly.share_weights import share_weights
from mttl.checkpoints.inventory_files import check_named
from mttl.io.errors import ConfigError, TaskError
from mttl.io.reading import read_table
from mttl.metrics.crossfit import check_metric
from mttl.runtime.gpus import device_of


def load_tasks(
    source: str | None, adapted: Sequence[str], backbone: str | None
) -> tuple[dict[str, Built], dict[str, str]]:
    """Return the model of every task, and its metric; adapted tasks come before the run's own.

    Models share equal tensors in memory, so they must not be changed.

    Raises:
        CheckpointError: If a folder holds no inventory.
        TaskError: If its results name a metric that does not exist.
        ConfigError: If nothing is named, or two adapted tasks have one name.
    """
    check_named(source, adapted)
    models: dict[str, Built] = {}
    metrics: dict[str, str] = {}
    weights: dict[str, list[Tensor]] = {}
    folders = [(folder, source) for folder in adapted] + ([(source, None)] if source else [])
    for folder, run in folders:
        built = load_run(folder, run=run, backbone=backbone)
        share_weights(built.model, weights)  # before another whole model is on the device
        built.model.to(device_of())
        twice = [name for name in built.tasks if name in models and folder != source]
        if twice:
            raise ConfigError(f"--adapted '{folder}': another one is of the task '{twice[0]}' too")
        models = {name: built for name in built.tasks} | models
        results = Path(folder) / "results.csv"
        if results.is_file():
            table = read_table(results, TaskError, ["task", "metric"])
            of_tasks = {row["task"]: row["metric"] for row in table if row["task"] in models}
            for name, metric in of_tasks.items():
                check_metric(metric, TaskError, f"'{results}': the metric of '{name}'")
            metrics = of_tasks | metrics
    return models, metrics
