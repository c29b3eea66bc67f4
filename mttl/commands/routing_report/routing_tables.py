"""Tables of the routing of a run, and of the cosines between the gradients of its tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from rich.markup import escape

from mttl.analysis.clustering import category_agreement
from mttl.analysis.factor_recovery import factor_recovery
from mttl.analysis.palette import UNKNOWN
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import matched_correlation
from mttl.analysis.statistics import ALL, STATISTICS, PermutationTest, stack_means
from mttl.analysis.token_record import TokenRoutingRecord, expert_tokens
from mttl.commands.routing_report.read_routing import open_run
from mttl.data.collate import TrainCollator, pad_id_of
from mttl.io.errors import CheckpointError
from mttl.runtime.text_table import TextTable
from mttl.training.loss import global_mean

MOST_PAIRS = 5


def statistics_table(view: RoutingView, *, every: bool = True) -> TextTable:
    """Return the mean routing statistics, by default below those of every group of layers."""
    table = TextTable(f"Routing of {view.name}").words("layers").numbers(*STATISTICS)
    if every:
        for group, values in zip(view.record.groups, view.statistics, strict=True):
            table.add(group, then=values)
        table.add_section()
    for stack, values in stack_means(view.statistics, view.record.groups).items():
        table.add("mean" if stack == ALL else f"mean, {stack}", then=values)
    table.caption = (
        "discreteness: 1 binary, 0 undecided; active cells: their share; usage: 1 all skills "
        f"equally; effective skills: number that a task mixes, of {view.record.weights.shape[2]}"
        + ("" if every else "; --all shows every group of layers")
    )
    return table


def likeness_table(view: RoutingView, n_adapted: int) -> TextTable:
    """Return which tasks of the run the adapted ones, the last, are routed like."""
    table = TextTable("Tasks that are routed like the adapted ones").words("adapted task")
    table.words("most similar tasks, with the correlation of routing weights")
    tasks = view.record.tasks
    n_known = len(tasks) - n_adapted
    for number in range(n_known, len(tasks)):
        likeness = view.similarity[number, :n_known]
        most = np.argsort(-likeness, kind="stable")[:5]
        table.add(tasks[number], ", ".join(f"{tasks[task]} {likeness[task]:.2f}" for task in most))
    return table


def load_table(tokens: TokenRoutingRecord) -> TextTable:
    """Return how evenly the experts of every layer are used, and what decides their choice."""
    table = TextTable("Experts that tokens choose").words("layers")
    table.numbers("load entropy", "dropped", "bits", "by task", "by token before", "by token")
    columns = np.stack(
        [
            *(tokens.evenness(), tokens.dropped, tokens.expert_bits),
            *(tokens.task_bits, tokens.previous_bits, tokens.token_bits),
        ],
        axis=1,
    )
    for layer, values in zip(tokens.layers, columns.tolist(), strict=True):
        table.add(layer, then=values)
    table.add_section()
    table.add("mean", then=columns.mean(0).tolist())
    table.caption = (
        "load entropy: 1 equal loads, 0 one expert; dropped: share of choices without room; bits: "
        "entropy of the choice, and what task, preceding token and token tell about it"
    )
    return table


def expert_table(tokens: TokenRoutingRecord) -> TextTable:
    """Return which tokens choose the experts of the layer whose choice depends most on tokens.

    After the table of Lewis et al. (BASE layers, arXiv:2103.16716), which lists the tokens before.
    """
    layer = int((tokens.token_bits + tokens.previous_bits).argmax())
    table = TextTable(f"Experts of {tokens.layers[layer]}").numbers("expert", "load")
    table.words("tokens that chose it most (share of theirs; after what)")
    table.words("commonest tokens before")
    for expert, load in enumerate(tokens.loads()[layer]):
        table.add(expert, f"{load:.1%}", then=expert_tokens(tokens, layer, expert, n=5))
    table.caption = "the layer whose tokens tell most about their expert; --html shows all layers"
    return table


def comparison_table(
    view: RoutingView, other: RoutingView | None, factors: Mapping[str, Sequence[str]]
) -> TextTable:
    """Return how routing fits categories, known factors and another run, compared with chance."""
    table = TextTable("Beside chance").words("").numbers("value", "chance", "95 %", "p")

    def add(name: str, found: PermutationTest) -> None:
        table.add(name, found.value, found.mean, found.percentile_95, found.p_value)

    known = [number for number, name in enumerate(view.categories) if name != UNKNOWN]
    categories = [view.categories[number] for number in known]
    n_categories = len(set(categories))
    notes = ["chance: mean and 95th percentile over 1000 permutations of the tasks"]
    if n_categories > 1:
        agreement = category_agreement(view.similarity[np.ix_(known, known)], categories)
        add(f"clusters of tasks and their {n_categories} categories (AMI)", agreement)
    else:
        notes.append("no categories: TASKS.csv of the gym names fewer than two")
    for name, values in factors.items():
        what = f"clusters of tasks and the {len(set(values))} values of {name} (AMI)"
        add(what, category_agreement(view.similarity, values))
    if factors:
        others = " among tasks equal in the other factors" if len(factors) > 1 else ""
        notes.append(f"of skills and pairs over 100{others}")
    recovered = factor_recovery(view.record.probabilities, factors) if factors else {}
    for name, found in recovered.items():
        if found is None:
            notes.append(f"{name} cannot be separated from the other factors")
            continue
        add(f"matched skills and {name} (AMI)", found.agreement)
        add(f"matched skills tell {name} (AUC)", found.matching)
        add(f"pairs of one {name} have similar routing (AUC)", found.pairs)
    if other is not None:
        correlation = matched_correlation(view.record.weights, other.record.weights)[1]
        add(f"matched skills of {other.name} (correlation)", correlation)
    table.caption = escape("; ".join(notes))
    return table


def gradient_cosines(run: Path, n_rows: int) -> Float[np.ndarray, "T T"]:
    """Return the cosines between the gradients of all tasks, with respect to the skills.

    They are computed after training, in evaluation mode, on ``n_rows`` training rows of each task.
    All gradients are in memory at once. Negative cosines show interference in shared skills.

    References:
        Yu et al., *Gradient Surgery for Multi-Task Learning*, NeurIPS 2020, arXiv:2001.06782.
        Caccia et al., arXiv:2211.03831, explain multi-head routing by better aligned gradients.
    """
    opened = open_run(run, "leave --gradients out", max_rows=n_rows)
    module, data = opened.module, opened.data
    inventories = [layer.inventory for layer in module.model.skilled_layers().values()]
    if not inventories:
        raise CheckpointError(
            f"'{run}' has no skills that tasks mix, only experts that tokens choose: leave "
            "--gradients out"
        )
    module.requires_grad_(False)
    # Parameters may be shared by layers.
    skills = list({id(v): v for own in inventories for v in own.parameters()}.values())
    for value in skills:
        value.requires_grad_(True)
    data.data = data.data.model_copy(update={"samples": data.data.samples[:1]})
    rows, n_tasks = data.train_rows, len(module.tasks)
    collate = TrainCollator(pad_id_of(data.tokenizer), data.decoder_only)
    task_ids, directions = np.array(rows["task_id"]), []
    for task in range(n_tasks):
        batch = collate([rows[int(number)] for number in np.flatnonzero(task_ids == task)[:n_rows]])
        losses, labels, _ = module.nll({k: v.to(module.device) for k, v in batch.items()})
        found = torch.autograd.grad(global_mean(losses, labels), skills, materialize_grads=True)
        flat = torch.cat([own.flatten() for own in found]).float()
        directions.append((flat / flat.norm().clamp_min(1e-12)).cpu())
    stacked = torch.stack(directions)
    return (stacked @ stacked.T).numpy()


def gradient_table(
    cosines: Float[np.ndarray, "T T"], tasks: Sequence[str], categories: Sequence[str]
) -> TextTable:
    """Return how aligned tasks are, in all, within and between categories, and who conflicts."""
    one, other = np.triu_indices(len(tasks), 1)
    values, names = cosines[one, other], np.array(categories)
    within = names[one] == names[other]
    table = TextTable("Cosines of the gradients of tasks").words("pairs of tasks")
    table.numbers("mean", "below 0")
    for name, chosen in (
        ("all", np.ones_like(within)),
        ("of one category", within),
        ("of two categories", ~within),
    ):
        if chosen.any():
            table.add(name, float(values[chosen].mean()), f"{(values[chosen] < 0).mean():.0%}")
    worst = np.argsort(values, kind="stable")[:MOST_PAIRS]
    pairs = [(tasks[int(one[pair])], tasks[int(other[pair])], values[pair]) for pair in worst]
    shown = (f"{first} and {second} {value:.2f}" for first, second, value in pairs)
    table.caption = f"Lowest cosines: {escape(', '.join(shown))}"
    return table
