"""The figures of a run by file name."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from mttl.analysis.figures.curves import statistics_by_layer, statistics_over_training
from mttl.analysis.figures.heat_maps import heat_maps, similarity_matrix
from mttl.analysis.figures.task_maps import dendrogram, radial_dendrogram, task_map
from mttl.analysis.projection import on_components, principal_components
from mttl.analysis.routing_record import Ablation
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import match_skills, matched
from mttl.analysis.statistics import stack_of
from mttl.analysis.token_record import TokenRoutingRecord, load_entropy

PANELS = 12  # largest number of groups of layers in one figure
BLOCK = re.compile(r".*?\.\d+(?=[./]|$)")  # "encoder.block.0" of "encoder.block.0.layer.1"
TOKENS = ("load entropy", "dropped", "by task, bits", "by previous token, bits", "by token, bits")


def drawings(view: RoutingView, other: RoutingView | None = None) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a run and the names of their files, without suffix.

    A second run to compare with must be aligned (`RoutingView.aligned_with`).
    """
    record, weights = view.record, view.record.weights
    over = what_mean(view)

    title = f"{view.name}: mixing weights, {over}"
    yield "heat_map", heat_maps(view.mean[None], [""], view, title, skills=view.skills)
    for name, members in layer_parts(record.groups):
        headings = [record.groups[group] for group in members]
        title = f"{view.name}: mixing weights, {name}"
        yield f"heat_map_{_file_name(name)}", heat_maps(weights[members], headings, view, title)

    title = f"{view.name}: similarity of tasks by their routing"
    yield "similarity", similarity_matrix(view.similarity, view, title)
    title = f"{view.name}: tree of tasks by their routing"
    yield "dendrogram", dendrogram(view, title)
    yield "dendrogram_radial", radial_dendrogram(view, title)

    points, shares = principal_components(weights)
    trails = [on_components(weights, rows) for rows in view.trails.values()]
    title = f"{view.name}: principal components of the tasks' routing"
    if trails:
        title += "; lines: adapted tasks from their first routing weights to their last"
    axes = f"component 1 ({shares[0]:.0%})", f"component 2 ({shares[1]:.0%})"
    yield "task_map_pca", task_map(points, view, title, axes, trails)

    title = f"{view.name}: statistics of the routing by layer"
    yield "statistics_by_layer", statistics_by_layer(view.statistics, record.groups, title=title)
    if view.curves:
        title = f"{view.name}: statistics of the routing over training"
        yield "statistics_over_training", statistics_over_training(view.curves, title=title)

    if other is not None:
        pairs = match_skills(matched(weights, view.pairs), other.record.weights)
        both = np.stack([view.mean, matched(other.record.weights, pairs).mean(0)])
        title = f"{view.name} and {other.name}: mixing weights, skills matched, {over}"
        figure = heat_maps(both, [view.name, other.name], view, title)
        yield f"compare_{_file_name(other.name)}", figure


def ablation_map(view: RoutingView, found: Ablation) -> Figure:
    """Draw the mixing weights next to the change of every task without each skill."""
    weights = matched(view.record.weights, found.pairs).mean(0)
    unit = "loss" if found.scores is None else "score, percentage points"
    return heat_maps(
        np.stack([weights, found.changes[0]]),
        ["mixing weight", f"{found.quantity} without the skill"],
        view,
        f"{view.name}: effect of each skill, {what_mean(view)}",
        changes=f"change of the {unit}",
        less_is_worse=found.scores is not None,
    )


def token_drawings(record: TokenRoutingRecord, name: str) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of the experts that tokens choose; see `drawings`."""
    bits = record.task_bits, record.previous_bits, record.token_bits
    values = np.stack([record.evenness(), record.dropped, *bits], axis=1)
    title = f"{name}: loads of experts, and mutual information of expert and task or token"
    yield "tokens_by_layer", statistics_by_layer(values, record.layers, title=title, names=TOKENS)
    history = record.history
    if history is not None and len(history.steps):
        curves = {
            "load entropy": (history.steps, load_entropy(history.load).mean(1)),
            "largest load": (history.steps, history.load.max(2).mean(1)),
            "dropped": (history.steps, history.dropped.mean(1)),
        }
        title = f"{name}: loads of experts over training, means over layers"
        yield "tokens_over_training", statistics_over_training(curves, title=title)


def _file_name(text: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]+", "_", text)


def what_mean(view: RoutingView) -> str:
    """Return the description of the mean over a run's groups of layers, for titles."""
    groups = view.record.groups
    if len(groups) == 1:
        return groups[0]
    how = "" if view.members else ", skills matched across them"
    return f"mean over {len(groups)} groups of layers{how}"


def layer_parts(groups: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yield the name and the groups of layers of each figure: a block, or a stack."""
    if len(groups) == 1:
        return
    names = [match[0] if (match := BLOCK.match(group)) else stack_of(group) for group in groups]
    if len(set(names)) == len(groups):  # every group is a block, or a stack
        names = [stack_of(group) for group in groups]
    for name in dict.fromkeys(names):
        members = [number for number, found in enumerate(names) if found == name]
        pieces = [members[start : start + PANELS] for start in range(0, len(members), PANELS)]
        for number, piece in enumerate(pieces, start=1):
            part = name or "layers"
            yield part if len(pieces) == 1 else f"{part} part {number}", piece
