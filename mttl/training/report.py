"""Tables printed by a run, its baselines, and the arrays of its figures."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Float
from lightning_fabric.utilities import move_data_to_device
from rich.table import Table
from torch import Tensor

from mttl.aggregation.packed_weights import stored
from mttl.analysis.token_record import TokenCounts, write_token_record
from mttl.checkpoints.whole_tensors import whole_parameters
from mttl.config.data_schema import Data
from mttl.io.files import write_table
from mttl.metrics.crossfit import score_answers
from mttl.metrics.metric_names import TEXT_METRIC
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.task.task_router import TaskRouter
from mttl.runtime.processes import rank
from mttl.runtime.text_table import TextTable
from mttl.skills.attach import Attachment
from mttl.skills.attention import AttendedInventory
from mttl.skills.composed.composed_model import ComposedModel
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.tasks.partition import MEAN
from mttl.tasks.rows import RowFile
from mttl.training.monitors import as_rows, head_names, write_arrays
from mttl.training.predictions import COLUMNS, Result, mean_result
from mttl.training.text_to_text import TextToTextModule

COPY, MAJORITY = "copy", "majority"
HEADINGS = {COPY: "copy", MAJORITY: "major"}
MEANING = "copy: the input as the answer; major: the most frequent training answer"


def attachment_table(
    attachment: Attachment,
    model: SkilledModel,
    token_layers: Attachment | None = None,
    *,
    is_trained: bool = True,
) -> Table:
    """Return a table of the attached skills, with one row per kind of layer and totals."""
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
    total = sum(math.prod(stored(p)[0]) for p in model.parameters())
    covered = [
        f"{n} of {m} linear layers in {word}" for word, (n, m) in attachment.coverage.items()
    ]
    table.caption = (
        f"{type(router).__name__}: {router.n_tasks} tasks, {router.n_skills} skills, "
        f"{router.n_heads} heads, {router.n_groups} routed groups. "
        + (f"Skills are on {' and '.join(covered)}. " if covered else "")
        + (f"{trainable:,} of " if is_trained else "")
        + f"{total:,} parameters{' are trained' if is_trained else ''}."
    )
    return table


def composition_table(model: ComposedModel, tasks: Sequence[str]) -> Table:
    """Return a table of a policy's parts and their parameters."""
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
    gym: Gym, metrics: Mapping[str, str], split: str, data: Data, seed: int
) -> dict[str, list[Result]]:
    """Return the scores of copying and of the most frequent training answer, on the first sample.

    Among equally frequent answers the first is used. There is a row per task, and the mean; the
    result is empty for raw text.
    """
    if TEXT_METRIC in metrics.values():  # then all tasks are raw text
        return {}
    results: dict[str, list[Result]] = {COPY: [], MAJORITY: []}
    for task, metric_name in metrics.items():
        sample = next(sample for sample in data.samples if gym.has_sample(task, sample))
        rows = gym.rows(task, split, sample, data.max_eval_rows or data.max_rows)
        trained = RowFile.scan(gym.file(task, "train", sample)).rows(data.max_rows)
        ((majority, _),) = Counter(row.outputs[0] for row in trained).most_common(1)
        answers = {COPY: [row.input for row in rows], MAJORITY: [majority] * len(rows)}
        where = task, split, str(sample), seed, metric_name
        whole = [row.outputs for row in rows], [row.source for row in rows]
        for name, predictions in answers.items():
            value = score_answers(metric_name, predictions, *whole)
            results[name].append(Result(*where, value, len(rows)))
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
    """Return a table of scores (%) per task, next to the baselines."""
    columns: dict[tuple[str, str], dict[str, list[float]]] = {}
    for split in dict.fromkeys(result.split for result in results):
        for name, rows in {split: results, **baselines.get(split, {})}.items():
            by_task = columns.setdefault((split, HEADINGS.get(name, name)), {})
            for row in rows:
                if row.split == split:
                    by_task.setdefault(row.task, []).append(row.score)
    table = TextTable("Scores per task (%)", digits=1).words("task", "metric")
    table.numbers(*(heading for _, heading in columns))
    raw = any(result.metric == TEXT_METRIC for result in results)
    table.caption = f"{TEXT_METRIC}: 1 / perplexity" if raw else MEANING
    if any(math.isnan(result.score) for result in results):
        table.caption += "; nan: undefined, counts as 0 in the mean"
    names = {result.task: result.metric for result in results if result.task != MEAN}
    for task, metric in {**names, MEAN: ""}.items():
        if task == MEAN:
            table.add_section()
        of_task = (scores.get(task, ()) for scores in columns.values())
        cells = [100 * sum(scores) / len(scores) if scores else "" for scores in of_task]
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

    With several heads, each head is a group named ``<group>/head <h>``.
    """
    weights = probabilities = attention
    if weights is None or probabilities is None:
        with whole_parameters(router):
            weights, probabilities = map(as_rows, (router.matrix(), router.probabilities()))
    heads = head_names(tuple(groups), weights.shape[0])
    if rank() == 0:
        arrays = {"weights": weights, "probabilities": probabilities}
        write_arrays(path, **arrays, tasks=np.array(tasks), groups=np.array(heads))


@torch.no_grad()
def attention_by_task(
    module: TextToTextModule, rows: Dataset, collate: Any
) -> Float[np.ndarray, "G T K"]:
    """Return the mean attention to each skill, over the tokens of some rows of each task.

    Rows are run one by one, without padding. Layers of a group are averaged. At most 16 rows of a
    task are used, evenly spaced, as more hardly change it; the module is left in evaluation mode.
    """
    module.eval()
    router = module.model.router
    task_ids = np.array(rows["task_id"])
    sums = torch.zeros(router.n_groups, router.n_tasks, router.n_skills, dtype=torch.float64)
    with ExitStack() as hooks:
        for layer in module.model.skilled_layers().values():
            if not isinstance(layer.inventory, AttendedInventory):
                continue

            def add(module, inputs, weights: Tensor, group: int = layer.group) -> None:
                sums[group, task_id] += weights.double().sum((0, 1)).cpu()

            hooks.callback(layer.inventory.attention.register_forward_hook(add).remove)
        for task_id in range(router.n_tasks):
            own = np.flatnonzero(task_ids == task_id)
            places = np.linspace(0, len(own) - 1, min(16, len(own))).round()
            for number in own[places.astype(int)]:
                batch = collate([rows[int(number)]])
                module.nll(move_data_to_device(batch, module.device))
    return (sums / sums.sum(-1, keepdim=True).clamp_min(1e-12)).float().numpy()


def write_token_routing(
    path: Path, module: TextToTextModule, batches: Iterable[Mapping[str, Any]]
) -> None:
    """Write ``token_routing.npz``: expert choices of tokens, by teacher forcing."""
    counts = count_tokens(module, batches)
    if rank() > 0:
        return
    tokenizer: Any = module.tokenizer
    write_token_record(
        path,
        counts,
        layers=tuple(module.model.token_layers()),
        tasks=module.tasks,
        text_of=lambda token: str(tokenizer.convert_ids_to_tokens(token)),
    )


@torch.no_grad()
def count_tokens(module: TextToTextModule, batches: Iterable[Mapping[str, Any]]) -> TokenCounts:
    """Return the experts that tokens choose, by layer, task, token and preceding token."""
    module.eval()
    layers = module.model.token_layers()
    numbers = {name: number for number, name in enumerate(layers)}
    backbone: Any = module.model.backbone
    counts = TokenCounts(
        len(layers),
        len(module.tasks),
        max(layer.router.n_experts for layer in layers.values()),
        backbone.get_input_embeddings().weight.shape[0],
    )
    for batch in batches:
        moved = move_data_to_device(batch, module.device)
        routing = module.nll(moved)[2]
        if not batch["rows"]:
            continue
        inputs = forced_inputs(backbone, moved)
        for record in routing.records:
            decoder = record.stack == "decoder" and "decoder_input_ids" in inputs
            ids = inputs["decoder_input_ids" if decoder else "input_ids"]
            before = torch.full_like(ids[:, :1], counts.n_tokens)
            previous = torch.cat([before, ids[:, :-1]], dim=1)
            tokens = record.tokens
            experts, tasks, chosen, before = (
                value.cpu().numpy().astype(np.int64)
                for value in (
                    record.experts,
                    moved["task_ids"][tokens // record.positions],
                    ids.reshape(-1)[tokens],
                    previous.reshape(-1)[tokens],
                )
            )
            layer, dropped = numbers[record.layer], int(record.dropped())
            counts.add(layer, experts, tasks, chosen, before, dropped)
    return counts
