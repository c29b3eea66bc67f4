"""Draw what the router of a run learned, and print its statistics.

python scripts/plot_routing.py runs/crossfit
python scripts/plot_routing.py runs/seed13 --compare runs/seed14 --html
python scripts/plot_routing.py runs/crossfit --adapted runs/crossfit/models/past

The figures go to RUN/plots, as PNG and SVG: heat maps of tasks by skills (the mean, and one per
block of layers), the tree of tasks, upright and round, their similarity and a map of them, the
subsets of skills in use, the statistics over layers and over training. --html adds a page to look
around in. --adapted shows tasks that were adapted from the run beside its own, and says which of
these they are routed like.

Where tokens choose experts, it also shows the loads of experts over layers and training, what
tells most about a token's expert (its task, itself, or the token before), and the tokens that each
expert is chosen for. In a run that routes tokens only, "skills" are experts, and weights are how
the tokens of a task are shared among them.

Where TASKS.csv of the gym has a column `factors` (language=de operation=date_long), the table says
how well skills, matched to the values of every factor, recover them, beside chance.

Groups of layers number their skills independently: the third skill of one has nothing to do with
the third of another. Means over layers therefore show little where there are many groups; trees and
similarities, which compare tasks within each group, do not depend on the numbers.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from mttl.analysis.agreement import category_agreement
from mttl.analysis.chance import Comparison
from mttl.analysis.factor_recovery import factor_recovery
from mttl.analysis.layers import ALL, STATISTICS, stack_means
from mttl.analysis.page import routing_page
from mttl.analysis.palette import UNKNOWN
from mttl.analysis.routing_record import RoutingRecord, read_record
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.stability import skill_stability
from mttl.analysis.tokens.token_page import expert_tokens
from mttl.analysis.tokens.token_record import (
    TokenRoutingRecord,
    has_token_record,
    read_token_record,
)
from mttl.checkpoint import read_inventory
from mttl.command import exit_with, make_console, make_parser
from mttl.config.load import load_any_config
from mttl.config.own_parts import LEAVE
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.data.chosen_tasks import gym_folder
from mttl.errors import CheckpointError, TaskError
from mttl.files import write_text
from mttl.gym.table import crossfit
from mttl.libraries import check_libraries
from mttl.reading import read_table
from mttl.training.routing_monitor import as_rows, routing_weights

LIBRARIES = ("matplotlib", "scipy", "sklearn", "plotly")


def main(arguments: list[str] | None = None) -> int:
    """Print and draw; return the exit status."""
    options = parse(arguments)
    check_libraries(*LIBRARIES)
    # They need matplotlib.
    from mttl.analysis.figures import drawings, save_figure, token_drawings

    console, status = make_console(), make_console(stderr=True)
    run = Path(options.run)
    tokens = read_token_record(run) if has_token_record(run) else None
    view = read_view(run, options.adapted, options.backbone)
    other = read_view(Path(options.compare)).aligned_with(view) if options.compare else None
    folder = Path(options.out) if options.out else view.record.folder / "plots"

    console.print(statistics_table(view))
    if options.adapted:
        console.print(likeness_table(view, len(options.adapted)))
    console.print(comparison_table(view, other, task_factors(run, view.record.tasks)))
    figures = drawings(view, other)
    if tokens is not None:
        console.print(load_table(tokens))
        console.print(expert_table(tokens))
        figures = chain(figures, token_drawings(tokens, view.name))
        if (run / "plots" / "routing.npz").is_file():  # else that is what the view shows
            shares = drawings(token_view(run, tokens))
            figures = chain(figures, ((f"tokens_{name}", figure) for name, figure in shares))
    n_figures = 0
    for name, figure in figures:
        save_figure(figure, folder / name)
        status.print(f"drawn: {name}", markup=False)
        n_figures += 1
    if options.html:
        page = routing_page(
            view.record,
            categories=view.categories,
            similarity=view.similarity,
            order=view.order,
            tokens=tokens,
        )
        write_text(folder / "routing.html", page)
        console.print(f"The page is {folder / 'routing.html'}: open it in a browser", markup=False)
    console.print(f"{n_figures} figures are in {folder}, as PNG and SVG", markup=False)
    return 0


def token_view(folder: Path, tokens: TokenRoutingRecord) -> RoutingView:
    """Return how the tokens of each task are shared among experts, as if tasks were routed so."""
    record = tokens.as_routing()
    return RoutingView(record, record.weights, task_categories(folder, record.tasks))


def read_view(
    folder: Path, adapted: Sequence[str] = (), backbone: str | None = None
) -> RoutingView:
    """Read the routing of a run and the categories of its tasks.

    Where only tokens are routed, it is how those of each task are shared among experts.

    Args:
        folder: Of the run.
        adapted: Folders of tasks that were adapted from it; they come last.
        backbone: Where a pretrained backbone is now, which adapted tasks are loaded with.

    Raises:
        CheckpointError: If the run has not ended, or its files are damaged or of different runs.
        TaskError: If it has a single task, or routes no tasks and some were adapted.
    """
    if has_token_record(folder) and not (folder / "plots" / "routing.npz").is_file():
        view = token_view(folder, read_token_record(folder))
        record = view.record
    else:
        view, record = None, read_record(folder)
    if view is not None and adapted:
        raise TaskError(f"'{folder}' routes tokens only: adapted tasks have no row of their own")
    if len(record.tasks) + len(adapted) < 2:
        raise TaskError(f"'{folder}' has one task only, and figures compare tasks")
    if view is not None:
        return view
    probabilities = use_probabilities(record)
    if adapted:
        record, probabilities = with_adapted(record, probabilities, adapted, backbone)
    return RoutingView(record, probabilities, task_categories(folder, record.tasks))


def with_adapted(
    record: RoutingRecord,
    probabilities: np.ndarray,
    adapted: Sequence[str],
    backbone: str | None = None,
) -> tuple[RoutingRecord, np.ndarray]:
    """Return the routing of a run and, behind it, of tasks that were adapted from it.

    A task whose name is there already is called after its folder, and those above it if need be.
    """
    from mttl.build.model import load_run

    tasks, weights, likely = [*record.tasks], [record.weights], [probabilities]
    for folder in adapted:
        built = load_run(folder, run=record.folder, backbone=backbone)
        router = built.model.router
        row = routing_weights(router).astype(np.float64)
        if row.shape[::2] != record.weights.shape[::2]:
            raise CheckpointError(
                f"'{folder}' has a router of {row.shape[0]} groups and {row.shape[2]} skills, and "
                f"'{record.folder}' {record.weights.shape[0]} and {record.weights.shape[2]}: their "
                "rows cannot be compared"
            )
        (task,) = built.tasks
        parts = Path(folder).resolve().parts
        names = (task, *("/".join(parts[-n:]) for n in range(1, len(parts) + 1)))
        tasks.append(next(name for name in names if name not in tasks))
        weights.append(row)
        likely.append(as_rows(router.probabilities()))
    joined = np.concatenate(weights, axis=1)
    record = replace(record, tasks=tuple(tasks), weights=joined, history=None, probabilities=None)
    return record, np.concatenate(likely, axis=1)


def likeness_table(view: RoutingView, n_adapted: int) -> Table:
    """Return which tasks of the run the adapted ones, the last, are routed like."""
    table = Table(title="Tasks that are routed like the adapted ones", title_justify="left")
    table.add_column("adapted task", overflow="fold")
    table.add_column("most alike, with the correlation of the rows", overflow="fold")
    n_known = len(view.record.tasks) - n_adapted
    for number in range(n_known, len(view.record.tasks)):
        likeness = view.similarity[number, :n_known]
        most = np.argsort(-likeness, kind="stable")[:5]
        shown = (f"{escape(view.record.tasks[task])} {likeness[task]:.2f}" for task in most)
        table.add_row(escape(view.record.tasks[number]), ", ".join(shown))
    return table


def use_probabilities(record: RoutingRecord) -> np.ndarray:
    """Return how likely each task is to use each skill, (G, T, K).

    It is what the router wrote down. Runs of earlier versions did not: Polytropon's mixing weights
    are normalised probabilities, which cannot be undone, so the saved logits are read. Other
    routers use what has a weight; HyperFormer's weights are all it has, and so is the attention of
    a fusion.
    """
    if record.probabilities is not None:
        return record.probabilities
    saved = read_inventory(record.folder)
    aggregation = saved.meta["settings"].get("aggregation", {})
    settings = saved.meta["settings"]["router"]
    if settings["kind"] == "hyperformer" or aggregation.get("kind") == "fusion":
        return record.weights
    if settings["kind"] != "polytropon":
        return (record.weights > 0).astype(np.float64)
    probabilities = saved.router["logits"].double().sigmoid()  # (G, T, H, K)
    if settings["straight_through"]:  # rounded as the router does, in the precision of the logits
        probabilities = (saved.router["logits"].sigmoid() > 0.5).double()
    if settings["shared_skill"]:  # the last skill is always on and has no logit
        always = torch.ones_like(probabilities[..., :1])
        probabilities = torch.cat([probabilities, always], dim=-1)
    found = probabilities.transpose(1, 2).flatten(0, 1).numpy()  # heads are groups
    if found.shape != record.weights.shape:
        raise CheckpointError(
            f"the router in '{saved.folder}' has shape {found.shape}, the weights in "
            f"'{record.folder / 'plots' / 'routing.npz'}' {record.weights.shape}: they are of "
            "different runs. Copy the whole folder again from where it was written"
        )
    return found


def task_categories(folder: Path, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the category of every task.

    It stands in the column `category` of the gym's TASKS.csv, else in CrossFit's table; that of a
    level of BabyAI is what it asks for. A task in neither is of the category "unknown".
    """
    settings = read_settings(folder)
    if settings is not None and not isinstance(settings, Config):
        from envs.levels import find_level

        return tuple(" ".join(find_level(task).competencies) for task in tasks)
    known = {name: info.category for name, info in crossfit().items()}
    known |= gym_column(settings, "category")
    return tuple(known.get(task, UNKNOWN) for task in tasks)


def task_factors(folder: Path, tasks: Sequence[str]) -> dict[str, list[str]]:
    """Return the known factors of the tasks: by name of a factor, its value for every task.

    They stand in the column `factors` of the gym's TASKS.csv as ``name=value name=value``. A factor
    that a task lacks, or that has one value only, is left out.

    Raises:
        TaskError: If an entry has another form.
    """
    factors: list[dict[str, str]] = []
    column = gym_column(read_settings(folder), "factors")
    for task in tasks:
        pairs = [word.partition("=") for word in column.get(task, "").split()]
        if not all(name and value for name, _, value in pairs):
            raise TaskError(
                f"the column 'factors' of TASKS.csv has '{column[task]}' for the task '{task}'; "
                "write name=value name=value"
            )
        factors.append({name: value for name, _, value in pairs})
    shared = [name for name in factors[0] if all(name in each for each in factors)]
    values = {name: [each[name] for each in factors] for name in shared}
    return {name: given for name, given in values.items() if len(set(given)) > 1}


def read_settings(folder: Path) -> Section | None:
    """Return the configuration of a run, if its folder has one."""
    config = folder / "config.yaml"
    return load_any_config([str(config)], own=LEAVE) if config.is_file() else None


def gym_column(settings: Section | None, column: str) -> dict[str, str]:
    """Return a column of TASKS.csv of the gym of a run, by task; nothing where it is empty."""
    if not isinstance(settings, Config):
        return {}
    table = gym_folder(settings.data) / "TASKS.csv"
    rows = read_table(table, TaskError) if table.exists() else []
    return {
        row["task"].strip(): row[column].strip()
        for row in rows
        if row.get("task") and row.get(column)
    }


def statistics_table(view: RoutingView) -> Table:
    """Return the statistics of every group of layers, and the means."""
    table = Table(title=f"Routing of {escape(view.name)}", title_justify="left")
    table.add_column("layers", overflow="fold")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for group, values in zip(view.record.groups, view.statistics, strict=True):
        table.add_row(escape(group), *(f"{value:.3f}" for value in values))
    table.add_section()
    for stack, values in stack_means(view.statistics, view.record.groups).items():
        name = "mean" if stack == ALL else f"mean, {stack}"
        table.add_row(name, *(f"{value:.3f}" for value in values))
    table.caption = (
        "discreteness: 1 binary, 0 undecided; sparsity: share of active cells; usage: 1 all skills "
        f"alike; effective skills: how many of {view.record.weights.shape[2]} a task mixes"
    )
    table.caption_justify = "left"
    return table


def load_table(tokens: TokenRoutingRecord) -> Table:
    """Return how evenly the experts of every layer are used, and what decides their choice."""
    table = Table(title="Experts that tokens choose", title_justify="left")
    table.add_column("layers", overflow="fold")
    heads = ("load entropy", "dropped", "bits", "by task", "by token before", "by token")
    for name in heads:
        table.add_column(name, justify="right")
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
        "load entropy: 1 all experts alike, 0 one; dropped: share of choices without room; bits: "
        "entropy of the choice, and what task, preceding token and token tell about it"
    )
    table.caption_justify = "left"
    return table


def expert_table(tokens: TokenRoutingRecord) -> Table:
    """Return which tokens the experts of one layer are chosen for: the one that they tell most of.

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
    """Return how routing fits categories, known factors and another run, beside chance."""
    table = Table(title="Beside chance", title_justify="left")
    table.add_column("", overflow="fold")
    for name in ("value", "chance", "95 %", "p"):
        table.add_column(name, justify="right", no_wrap=True)

    def add(name: str, found: Comparison) -> None:
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
        table.caption += "; of matched skills over 100"
    for name, found in factor_recovery(view.probabilities, factors).items() if factors else ():
        add(f"matched skills and {escape(name)} (AMI)", found.agreement)
        add(f"matched skills tell {escape(name)} (AUC)", found.matching)
    if other is not None:
        stability = skill_stability(view.record.weights, other.record.weights)[1]
        add(f"matched skills of {escape(other.name)} (correlation)", stability)
    table.caption_justify = "left"
    return table


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of a run that has ended")
    add("--html", action="store_true", help="write the page routing.html too")
    add("--compare", metavar="RUN2", help="a run of another seed, whose skills are matched")
    add(
        "--adapted",
        nargs="+",
        default=[],
        metavar="DIR",
        help="tasks that were adapted from the run and kept (pl_finetune.py --save)",
    )
    add("--backbone", metavar="DIR", help="where the backbone of adapted tasks is now")
    add("--out", metavar="DIR", help="where to write (RUN/plots)")
    options = parser.parse_args(arguments)
    if options.adapted and options.compare:
        parser.error("--adapted shows tasks that no other run has: leave --compare out")
    if options.backbone and not options.adapted:
        parser.error("--backbone is for adapted tasks: name them with --adapted, or leave it out")
    if len({Path(folder).resolve() for folder in options.adapted}) < len(options.adapted):
        parser.error("--adapted names a folder twice: name each once")
    return options


if __name__ == "__main__":
    exit_with(main)
