"""Tables of the routing of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.markup import escape

from mttl.analysis.clustering import category_agreement
from mttl.analysis.factor_recovery import factor_recovery
from mttl.analysis.layers import ALL, STATISTICS, stack_means
from mttl.analysis.palette import UNKNOWN
from mttl.analysis.permutation_test import PermutationTest
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import matched_correlation
from mttl.analysis.tokens.token_page import expert_tokens
from mttl.analysis.tokens.token_record import TokenRoutingRecord
from mttl.runtime.text_table import TextTable


def statistics_table(view: RoutingView) -> TextTable:
    """Return the statistics of every group of layers, and the means."""
    table = TextTable(f"Routing of {view.name}").words("layers").numbers(*STATISTICS)
    for group, values in zip(view.record.groups, view.statistics, strict=True):
        table.add(group, then=values)
    table.add_section()
    for stack, values in stack_means(view.statistics, view.record.groups).items():
        table.add("mean" if stack == ALL else f"mean, {stack}", then=values)
    table.caption = (
        "discreteness: 1 binary, 0 undecided; active cells: their share; usage: 1 all skills "
        f"equally; effective skills: how many of {view.record.weights.shape[2]} a task mixes"
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
    for name, found in factor_recovery(view.probabilities, factors).items() if factors else ():
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
