"""Tables of a run's routing and of the cosines between its tasks' gradients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from lightning_fabric.utilities import move_data_to_device
from rich.markup import escape

from mttl.analysis.clustering import category_agreement
from mttl.analysis.factor_recovery import factor_recovery
from mttl.analysis.palette import UNKNOWN
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import matched, matched_correlation
from mttl.analysis.statistics import ALL, STATISTICS, PermutationTest, stack_means
from mttl.analysis.token_record import TokenRoutingRecord, expert_tokens
from mttl.commands.routing_report.read_routing import open_run
from mttl.io.errors import CheckpointError
from mttl.runtime.text_table import TextTable
from mttl.training.loss import global_mean

MOST_PAIRS = 5


def statistics_table(view: RoutingView, *, every: bool = True) -> TextTable:
    """Return a table of routing statistics: means, by default below those of every group."""
    table = TextTable(f"Routing of {view.name}").words("layers").numbers(*STATISTICS)
    if every:
        for group, values in zip(view.record.groups, view.statistics, strict=True):
            table.add(group, then=values)
        table.add_section()
    for stack, values in stack_means(view.statistics, view.record.groups).items():
        table.add("mean" if stack == ALL else f"mean, {stack}", then=values)
    table.caption = (
        "discreteness: 1 is binary, 0 undecided; active cells: fraction above 0.5; usage: 1 if all "
        f"skills are used equally; effective skills: number (of {view.record.weights.shape[2]}) "
        "that a task mixes" + ("" if every else "; --all shows every group of layers")
    )
    return table


def subset_table(view: RoutingView) -> TextTable:
    """Return a table of the subsets of skills that tasks use, in the mean over groups of layers.

    It is that of the appendix of Ponti, Sordoni, Bengio and Reddy, EACL 2023.
    """
    table = TextTable("Skills with a probability above one half").words("skills").numbers("n")
    table.words("tasks")
    found: dict[tuple[int, ...], list[str]] = {}
    active = matched(view.record.probabilities, view.pairs).mean(0) > 0.5
    for task, row in zip(view.record.tasks, active, strict=True):
        found.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(task)
    for skills, tasks in sorted(found.items(), key=lambda item: (len(item[0]), item[0])):
        table.add(" ".join(map(str, skills)), len(tasks), ", ".join(tasks))
    return table


def likeness_table(view: RoutingView, n_adapted: int) -> TextTable:
    """Return a table of the tasks with routing most similar to each adapted task's."""
    table = TextTable("Tasks with routing similar to the adapted tasks").words("adapted task")
    table.words("most similar tasks, with the correlation of routing weights")
    tasks = view.record.tasks
    n_known = len(tasks) - n_adapted
    for number in range(n_known, len(tasks)):
        likeness = view.similarity[number, :n_known]
        most = np.argsort(-likeness, kind="stable")[:5]
        table.add(tasks[number], ", ".join(f"{tasks[task]} {likeness[task]:.2f}" for task in most))
    return table


def load_table(tokens: TokenRoutingRecord) -> TextTable:
    """Return a table of how evenly experts are used, and what determines their choice."""
    table = TextTable("Expert choice of tokens").words("layers")
    table.numbers("load entropy", "dropped", "bits", "by task", "by previous token", "by token")
    names = ("dropped", "expert_bits", "task_bits", "previous_bits", "token_bits")
    columns = np.stack([tokens.evenness(), *(getattr(tokens, n) for n in names)], axis=1)
    for layer, values in zip(tokens.layers, columns.tolist(), strict=True):
        table.add(layer, then=values)
    table.add_section()
    table.add("mean", then=columns.mean(0).tolist())
    table.caption = (
        "load entropy: 1 for equal loads, 0 for one expert; dropped: fraction of choices beyond "
        "capacity; bits: entropy of the chosen expert, and its mutual information with the task, "
        "the previous token and the token"
    )
    return table


def expert_table(tokens: TokenRoutingRecord) -> TextTable:
    """Return a table of the experts' most frequent tokens, in the most token-dependent layer.

    After the table of Lewis et al. (BASE layers, arXiv:2103.16716), which lists preceding tokens.
    """
    layer = int((tokens.token_bits + tokens.previous_bits).argmax())
    table = TextTable(f"Experts of {tokens.layers[layer]}").numbers("expert", "load")
    table.words("most frequent tokens (fraction of their choices; previous token)")
    table.words("most frequent previous tokens")
    for expert, load in enumerate(tokens.loads()[layer]):
        table.add(expert, f"{load:.1%}", then=expert_tokens(tokens, layer, expert, n=5))
    table.caption = "the layer whose choice depends most on tokens; mttl explore shows all"
    return table


def comparison_table(
    view: RoutingView, other: RoutingView | None, factors: Mapping[str, Sequence[str]]
) -> TextTable:
    """Return permutation tests of routing against categories, factors and another run."""
    table = TextTable("Permutation tests").words("").numbers("value", "chance", "95 %", "p")

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
        notes.append("no categories: the tasks have fewer than two")
    for name, values in factors.items():
        what = f"clusters of tasks and the {len(set(values))} values of {name} (AMI)"
        add(what, category_agreement(view.similarity, values))
    if factors:
        others = " among tasks equal in the other factors" if len(factors) > 1 else ""
        notes.append(f"for skills and pairs, 100 permutations{others}")
    recovered = factor_recovery(view.record.probabilities, factors) if factors else {}
    for name, found in recovered.items():
        if found is None:
            notes.append(f"{name} cannot be separated from the other factors")
            continue
        add(f"matched skills and {name} (AMI)", found.agreement)
        add(f"matched skills predict {name} (AUC)", found.matching)
        add(f"pairs with equal {name} have similar routing (AUC)", found.pairs)
    if other is not None:
        correlation = matched_correlation(view.record.weights, other.record.weights)[1]
        add(f"matched skills of {other.name} (correlation)", correlation)
    table.caption = escape("; ".join(notes))
    return table


def gradient_cosines(run: Path, n_rows: int) -> Float[np.ndarray, "T T"]:
    """Return the cosines between the tasks' gradients with respect to the skills.

    They are computed in evaluation mode on ``n_rows`` training rows per task. All gradients are
    kept in memory. Negative cosines show interference in shared skills.

    References:
        Yu et al., *Gradient Surgery for Multi-Task Learning*, NeurIPS 2020, arXiv:2001.06782.
        Caccia et al., arXiv:2211.03831, attribute gains of multi-head routing to aligned gradients.
    """
    opened = open_run(run, "remove --gradients", max_rows=n_rows)
    module, data = opened.module, opened.data
    inventories = [layer.inventory for layer in module.model.skilled_layers().values()]
    if not inventories:
        raise CheckpointError(
            f"'{run}' has no skills, only experts that tokens choose; remove --gradients"
        )
    module.requires_grad_(False)
    # Parameters may be shared by layers.
    skills = list({id(v): v for own in inventories for v in own.parameters()}.values())
    for value in skills:
        value.requires_grad_(True)
    data.data = data.data.model_copy(update={"samples": data.data.samples[:1]})
    rows, n_tasks = data.train_rows, len(module.tasks)
    collate = data.collator()
    task_ids, directions = np.array(rows["task_id"]), []
    for task in range(n_tasks):
        batch = collate([rows[int(number)] for number in np.flatnonzero(task_ids == task)[:n_rows]])
        losses, labels, _ = module.nll(move_data_to_device(batch, module.device))
        found = torch.autograd.grad(global_mean(losses, labels), skills, materialize_grads=True)
        flat = torch.cat([own.flatten() for own in found]).float()
        directions.append((flat / flat.norm().clamp_min(1e-12)).cpu())
    stacked = torch.stack(directions)
    return (stacked @ stacked.T).numpy()


def gradient_table(
    cosines: Float[np.ndarray, "T T"], tasks: Sequence[str], categories: Sequence[str]
) -> TextTable:
    """Return a table of gradient cosines overall, within and between categories."""
    one, other = np.triu_indices(len(tasks), 1)
    values, names = cosines[one, other], np.array(categories)
    within = names[one] == names[other]
    table = TextTable("Cosines of the gradients of tasks").words("pairs of tasks")
    table.numbers("mean", "below 0")
    for name, chosen in (
        ("all", np.ones_like(within)),
        ("within a category", within),
        ("between categories", ~within),
    ):
        if chosen.any():
            table.add(name, float(values[chosen].mean()), f"{(values[chosen] < 0).mean():.0%}")
    worst = np.argsort(values, kind="stable")[:MOST_PAIRS]
    pairs = [(tasks[int(one[pair])], tasks[int(other[pair])], values[pair]) for pair in worst]
    shown = (f"{first} and {second} {value:.2f}" for first, second, value in pairs)
    table.caption = f"Lowest cosines: {escape(', '.join(shown))}"
    return table
