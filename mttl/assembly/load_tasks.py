"""Load a run and its adapted tasks, with the model of each task."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mttl.aggregation.packed_weights import is_packed, parts
from mttl.assembly.model import Built, load_run
from mttl.checkpoints.inventory_files import check_named, is_adapted
from mttl.data.encode import tokenizer_identity
from mttl.io.errors import ConfigError, TaskError, raised_as
from mttl.io.reading import read_table
from mttl.metrics.metric_names import check_metric
from mttl.runtime.processes import device_of
from mttl.skills.skilled_model import SkilledModel


def load_tasks(
    source: str | None,
    adapted: Sequence[str],
    backbone: str | None,
    on: Sequence[str] | None = None,
) -> tuple[dict[str, Built], dict[str, str]]:
    """Return the models and metrics by task; adapted tasks come before those of the run.

    Folders of adapted tasks may also be other runs. All models use the skills of other runs ``on``,
    if given, instead of those of training. Models share equal tensors in memory, so they must not
    be modified.
    """
    check_named(source, adapted)
    models: dict[str, Built] = {}
    metrics: dict[str, str] = {}
    weights: dict[str, list[Tensor]] = {}
    of_runs: set[str] = set()
    folders = [(folder, source if is_adapted(folder) else None) for folder in adapted]
    folders += [(source, None)] if source else []
    for folder, run in folders:
        built = load_run(folder, run=run, backbone=backbone, on=on)
        share_weights(built.model, weights)  # before another model is moved to the device
        built.model.to(device_of())
        known = of_runs if folder == source else models
        if twice := [name for name in built.tasks if name in known]:
            option = "--from" if folder == source else "--adapted"
            raise ConfigError(
                f"{option} '{folder}': '{twice[0]}' is loaded twice; remove one. To combine both, "
                "rename the task in the task file and adapt again, or add logits in Python by "
                "with_logits"
            )
        of_runs |= set() if is_adapted(folder) else {*built.tasks}
        models = {name: built for name in built.tasks} | models
        results = Path(folder) / "results.csv"
        if results.is_file():
            table = read_table(results, TaskError, ["task", "metric"])
            of_tasks = {row["task"]: row["metric"] for row in table if row["task"] in models}
            for name, metric in of_tasks.items():
                text = name in models[name].form.texts
                check_metric(metric, TaskError, f"'{results}': the metric of '{name}'", text=text)
            metrics = of_tasks | metrics
    return models, metrics


def share_weights(model: nn.Module, known: dict[str, list[Tensor]]) -> int:
    """Share parameters and buffers with equal ones of earlier models; return the saved bytes.

    The model must not be modified afterwards; shared tensors are on the device of the earlier
    model. ``known`` has the tensors of earlier models by name, and receives the model's.
    """
    saved = 0
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        mine = known.setdefault(name, [])
        same = next((other for other in mine if _equal(other, tensor)), None)
        if same is None:
            mine.append(tensor)
        elif is_packed(tensor):
            model.get_submodule(name.rpartition(".")[0]).weight = same  # type: ignore[assignment]
            saved += sum(part.nbytes for part in parts(tensor))
        else:
            tensor.data = same.data
            saved += tensor.nbytes
    return saved


def fixed_model(built: Built, reference: str | None) -> tuple[SkilledModel, Tensor]:
    """Return the model of a run, or a copy of the built one, and its ids of the built one's tasks.

    It shares frozen parameters with the built model, which may be trained. Raises a `ConfigError`
    if the run has another tokenizer, or lacks a task.
    """
    parameters = built.model.named_parameters(remove_duplicate=False)
    frozen = {name: own for name, own in parameters if not own.requires_grad}
    if reference is None:
        shared = {id(own): own for own in frozen.values()}
        return copy.deepcopy(built.model, shared), built.task_ids(built.tasks)
    found = load_run(reference)
    place = f"optim.divergence.reference '{reference}'"
    if tokenizer_identity(found.tokenizer) != tokenizer_identity(built.tokenizer):
        raise ConfigError(f"{place} has another tokenizer; name a run over the same backbone")
    for name, own in [*found.model.named_parameters(remove_duplicate=False)]:
        if name in frozen and _equal(own, frozen[name]):
            module, _, leaf = name.rpartition(".")
            setattr(found.model.get_submodule(module), leaf, frozen[name])
    with raised_as(ConfigError, place, TaskError):
        return found.model, found.task_ids(built.tasks)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors in different memory are equal; packed ones are compared by part."""
    if type(one) is not type(other):
        return False
    if is_packed(one):
        pairs = zip(parts(one), parts(other), strict=True)
        return one is not other and all(_same(a, b) for a, b in pairs)
    return one.data_ptr() != other.data_ptr() and _same(one, other)


def _same(one: Tensor, other: Tensor) -> bool:
    same_form = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same_form and torch.equal(one, other.to(one.device))
