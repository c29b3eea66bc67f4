"""Tables of the routing of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from mttl.analysis.cluster_agreement import category_agreement
from mttl.analysis.factor_recovery import factor_recovery
from mttl.analysis.layers import ALL, STATISTICS, stack_means
from mttl.analysis.palette import UNKNOWN
from mttl.analysis.permutation_test import PermutationTest
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import matched_correlation
from mttl.analysis.tokens.token_page import expert_tokens
from mttl.analysis.tokens.token_record import (
    TokenRoutingRecord,
)
from mttl.runtime.tables import make_table


def statistics_table(view: RoutingView) -> Table:
    """Return the statistics of every group of layers, and the means."""
    table = make_table(f"Routing of {view.name}", ["layers"], STATISTICS)
    for group, values in zip(view.record.groups, view.statistics, strict=True):
        table.add_row(escape(group), *(f"{value:.3f}" for value in values))
    table.add_section()
    for stack, values in stack_means(view.statistics, view.record.groups).items():
        name = "mean" if stack == ALL else f"mean, {stack}"
        table.add_row(name, *(f"{value:.3f}" for value in values))
    table.caption = (
        "discreteness: 1 binary, 0 undecided; active cells: their share; usage: 1 all skills "
        f"equally; effective skills: how many of {view.record.weights.shape[2]} a task mixes"
    )
    return table


def likeness_table(view: RoutingView, n_adapted: int) -> Table:
    """Return which tasks of the run the adapted ones, the last, are routed like."""
    headings = "adapted task", "most similar tasks, with the correlation of routing weights"
    table = make_table("Tasks that are routed like the adapted ones", headings, [])
    n_known = len(view.record.tasks) - n_adapted
    for number in range(n_known, len(view.record.tasks)):
        likeness = view.similarity[number, :n_known]
        most = np.argsort(-likeness, kind="stable")[:5]
        shown = (f"{escape(view.record.tasks[task])} {likeness[task]:.2f}" for task in most)
        table.add_row(escape(view.record.tasks[number]), ", ".join(shown))
    return table


def load_table(tokens: TokenRoutingRecord) -> Table:
    """Return how evenly the experts of every layer are used, and what decides their choice."""
    heads = ("load entropy", "dropped", "bits", "by task", "by token before", "by token")
    table = make_table("Experts that tokens choose", ["layers"], heads)
    columns = np.stack(
        [
            *(tokens.evenness(), tokens.dropped, tokens.expert_bits),
            *(tokens.task_bits, tokens.previous_bits, tokens.token_bits),
        ],
        axis=1,
    )
    for layer, values in zip(tokens.layers, columns, strict=True):
        table.add_row(escape(layer), *(f"{value:.3f}" for value in values))
    table.add_section()
    table.add_row("mean", *(f"{value:.3f}" for value in columns.mean(0)))
    table.caption = (
        "load entropy: 1 equal loads, 0 one expert; dropped: share of choices without room; bits: "
        "entropy of the choice, and what task, preceding token and token tell about it"
    )
    return table


def expert_table(tokens: TokenRoutingRecord) -> Table:
    """Return which tokens choose the experts of the layer whose choice depends most on tokens.

    After the table of Lewis et al. (BASE layers, arXiv:2103.16716), which lists the tokens before.
    """
    layer = int((tokens.token_bits + tokens.previous_bits).argmax())
    title = f"Experts of {escape(tokens.layers[layer])}"
    table = Table(title=title, title_justify="left")
    for name in ("expert", "load"):
        table.add_column(name, justify="right")
    table.add_column("tokens that chose it most (share of theirs; after what)", overflow="fold")
    table.add_column("commonest tokens before", overflow="fold")
    for expert, load in enumerate(tokens.loads()[layer]):
        found = expert_tokens(tokens, layer, expert, n=5)
        table.add_row(str(expert), f"{load:.1%}", *map(escape, found))
    table.caption = "the layer whose tokens tell most about their expert; --html shows all layers"
    table.caption_justify = "left"
    return table


def comparison_table(
    view: RoutingView, other: RoutingView | None, factors: Mapping[str, Sequence[str]]
) -> Table:
    """Return how routing fits categories, known factors and another run, compared with chance."""
    table = make_table("Beside chance", [""], ["value", "chance", "95 %", "p"])

    def add(name: str, found: PermutationTest) -> None:
        values = (found.value, found.mean, found.percentile_95, found.p_value)
        table.add_row(name, *(f"{value:.3f}" for value in values))

    known = [number for number, name in enumerate(view.categories) if name != UNKNOWN]
    categories = [view.categories[number] for number in known]
    n_categories = len(set(categories))
    table.caption = "chance: mean and 95th percentile over 1000 permutations of the tasks"
    if n_categories > 1:
        agreement = category_agreement(view.similarity[np.ix_(known, known)], categories)
        add(f"clusters of tasks and their {n_categories} categories (AMI)", agreement)
    else:
        table.caption += "; no categories: TASKS.csv of the gym names fewer than two"
    for name, values in factors.items():
        what = f"the {len(set(values))} values of {escape(name)}"
        add(f"clusters of tasks and {what} (AMI)", category_agreement(view.similarity, values))
    if factors:
        table.caption += "; of skills and pairs over 100"
        table.caption += " among tasks equal in the other factors" if len(factors) > 1 else ""
    for name, found in factor_recovery(view.probabilities, factors).items() if factors else ():
        if found is None:
            table.caption += f"; {escape(name)} cannot be separated from the other factors"
            continue
        add(f"matched skills and {escape(name)} (AMI)", found.agreement)
        add(f"matched skills tell {escape(name)} (AUC)", found.matching)
        add(f"pairs of one {escape(name)} have similar routing (AUC)", found.pairs)
    if other is not None:
        correlation = matched_correlation(view.record.weights, other.record.weights)[1]
        add(f"matched skills of {escape(other.name)} (correlation)", correlation)
    return table
