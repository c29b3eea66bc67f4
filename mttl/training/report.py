"""Tables that a run prints, its baselines, and the routing weights behind its plots."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from rich.table import Table

from mttl.aggregation.packed_weights import count_entries
from mttl.checkpoints.whole_tensors import is_first, whole_parameters
from mttl.config.data_schema import Data
from mttl.io.files import write_table
from mttl.metrics.crossfit import score_answers
from mttl.routing.task.task_router import TaskRouter
from mttl.runtime.text_table import TextTable
from mttl.skills.attach import Attachment
from mttl.skills.composed.composed_model import ComposedModel
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.tasks.partition import MEAN
from mttl.training.monitors import as_rows, head_names, routing_weights, write_arrays
from mttl.training.predictions import COLUMNS, Result, mean_result

COPY, MAJORITY = "copy", "majority"
HEADINGS = {COPY: "copy", MAJORITY: "major"}


def attachment_table(
    attachment: Attachment,
    model: SkilledModel,
    token_layers: Attachment | None = None,
    *,
    is_trained: bool = True,
) -> Table:
    """Return what was attached: a row per kind of layer, then the totals."""
    what = "Skills" if token_layers is None else "Skills and experts"
    found = list(attachment.summary())
    if token_layers is not None:
        found += [(f"{pattern} (tokens)", *rest) for pattern, *rest in token_layers.summary()]
    table = TextTable(f"{what} on the backbone").words("layers")
    table.numbers("count", "shape", "parameters")
    for layers, count, shape, size in found:
        table.add(layers, count, shape, f"{size:,}")
    router = model.router
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(count_entries(p) for p in model.parameters())
    covered = [
        f"{n} of {m} linear layers in {word}" for word, (n, m) in attachment.coverage.items()
    ]
    table.caption = (
        f"{type(router).__name__}: {router.n_tasks} tasks, {router.n_skills} skills, "
        f"{router.n_heads} heads, {router.n_groups} routed groups. "
        + (f"Skills are on {' and '.join(covered)}. " if covered else "")
        + (f"{trainable:,} of {total:,} parameters are trained." if is_trained else "")
        + ("" if is_trained else f"{total:,} parameters.")
    )
    return table


def composition_table(model: ComposedModel, tasks: Sequence[str]) -> Table:
    """Return what a task's network is made of: a row per part, then the totals."""
    router, inventory = model.router, model.inventory
    kinds = {type(module).__name__ for module in inventory.modules() if hasattr(module, "init")}
    table = TextTable("Policies made of skills").words("part", "kind")
    table.numbers("parameters", "trained")
    for part, name, module in (
        ("common", type(model.base).__name__, model.base),
        ("skills", f"{inventory.n_skills} × {' '.join(sorted(kinds))}", inventory),
        ("router", type(router).__name__, router),
    ):
        numbers = [(p.numel(), p.requires_grad) for p in module.parameters()]
        total, trained = sum(n for n, _ in numbers), sum(n for n, needed in numbers if needed)
        table.add(part, name, f"{total:,}", f"{trained:,}")
    table.caption = (
        f"{len(tasks)} levels, {router.n_skills} skills, {router.n_groups} routed groups"
    )
    return table


def baseline_results(
    gym: Gym,
    metrics: Mapping[str, str],
    split: str,
    data: Data,
    seed: int,
) -> dict[str, list[Result]]:
    """Score copying the input and the most frequent training answer, on the first sample.

    Returns:
        Results of the two baselines, a row per task and their means.
    """
    results: dict[str, list[Result]] = {COPY: [], MAJORITY: []}
    for task, metric_name in metrics.items():
        sample = next(sample for sample in data.samples if sample in gym.samples(task))
        rows = gym.rows(task, split, sample, data.max_eval_rows or data.max_rows)
        trained = [row.outputs[0] for row in gym.rows(task, "train", sample, data.max_rows)]
        answers = {
            COPY: [row.input for row in rows],
            MAJORITY: [majority_prediction(trained)] * len(rows),
        }
        for name, predictions in answers.items():
            value = score_answers(metric_name, predictions, [row.outputs for row in rows])
            results[name].append(
                Result(task, split, str(sample), seed, metric_name, value, len(rows))
            )
    return {name: [*of_tasks, mean_result(of_tasks)] for name, of_tasks in results.items()}


def write_baselines(path: Path, baselines: Mapping[str, Mapping[str, Sequence[Result]]]) -> None:
    """Write ``baselines.csv``: the columns of ``results.csv`` and the name of the baseline."""
    rows = (
        {"baseline": name, **result.row()}
        for by_name in baselines.values()
        for name, results in by_name.items()
        for result in results
    )
    write_table(path, ["baseline", *COLUMNS], rows)


def result_table(
    results: Sequence[Result], baselines: Mapping[str, Mapping[str, Sequence[Result]]]
) -> Table:
    """Return the scores (%) per task, next to the baselines of each split."""
    columns = {}
    for split in dict.fromkeys(result.split for result in results):
        for name, rows in {split: results, **baselines.get(split, {})}.items():
            columns[split, HEADINGS.get(name, name)] = rows
    table = TextTable("Scores per task (%)", digits=1).words("task", "metric")
    table.numbers(*(heading for _, heading in columns))
    table.caption = "copy: the input as the answer; major: the most frequent training answer"
    if any(math.isnan(result.score) for result in results):
        table.caption += "; nan: undefined, counts as 0 in the mean"
    names = {result.task: result.metric for result in results if result.task != MEAN}
    for task, metric in {**names, MEAN: ""}.items():
        if task == MEAN:
            table.add_section()
        cells: list[float | str] = []
        for (split, _), rows in columns.items():
            scores = [row.score for row in rows if (row.task, row.split) == (task, split)]
            cells.append(100 * sum(scores) / len(scores) if scores else "")
        table.add(task, metric, then=cells)
    return table


def write_routing(
    path: Path,
    router: TaskRouter,
    groups: Sequence[str],
    tasks: Sequence[str],
    *,
    attention: Float[np.ndarray, "G T K"] | None = None,
) -> None:
    """Write ``routing.npz``: weights and probabilities (G, T, K), ``tasks`` and ``groups``.

    With several heads each head counts as a group, named ``<group>/head <h>``.
    """
    weights = probabilities = attention
    if weights is None or probabilities is None:
        with whole_parameters(router):
            weights, probabilities = routing_weights(router), as_rows(router.probabilities())
    heads = head_names(tuple(groups), weights.shape[0])
    if is_first():
        arrays = {"weights": weights, "probabilities": probabilities}
        write_arrays(path, **arrays, tasks=np.array(tasks), groups=np.array(heads))


def majority_prediction(outputs: Sequence[str]) -> str:
    """Return the most frequent training answer; of equally frequent ones, the first."""
    return Counter(outputs).most_common(1)[0][0]
