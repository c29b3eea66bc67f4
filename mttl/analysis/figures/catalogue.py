"""All figures of a run, by the names of their files."""

import importlib.util
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mttl.analysis.ablation_record import Ablation
from mttl.analysis.figures.curves import statistics_by_layer, statistics_over_training
from mttl.analysis.figures.heat_maps import heat_maps, similarity_matrix
from mttl.analysis.figures.subset_table import subset_table
from mttl.analysis.figures.task_map import task_map
from mttl.analysis.figures.trees import dendrogram, radial_dendrogram
from mttl.analysis.layers import stack_of
from mttl.analysis.projection import on_components, principal_components, umap_projection
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import match_skills, matched
from mttl.io.errors import CheckpointError

PANELS = 12  # groups of layers in one figure, at most
BLOCK = re.compile(r".*?\.\d+(?=[./]|$)")  # "encoder.block.0" of "encoder.block.0.layer.1"
SMALLEST_UMAP = 5  # tasks


def drawings(view: RoutingView, other: RoutingView | None = None) -> Iterator[tuple[str, Figure]]:
    """Draw every figure of a run, one when the next is asked for.

    Args:
        view: The run.
        other: A run to compare it with, of the same tasks and groups (see `aligned_with`).

    Yields:
        The name of the file, without suffix, and the figure.
    """
    record = view.record
    named: dict[str, Any] = {"tasks": record.tasks, "categories": view.categories}
    ordered: dict[str, Any] = {**named, "order": view.order}
    over = what_mean(view)

    title = f"{view.name}: mixing weights, {over}"
    yield "heat_map", heat_maps(view.mean[None], [""], title=title, skills=view.skills, **ordered)
    for name, members in layer_parts(record.groups):
        headings = [record.groups[group] for group in members]
        title = f"{view.name}: mixing weights, {name}"
        figure = heat_maps(record.weights[members], headings, title=title, **ordered)
        yield f"heat_map_{re.sub('[^A-Za-z0-9_.-]+', '_', name)}", figure

    title = f"{view.name}: similarity of tasks by their routing"
    yield "similarity", similarity_matrix(view.similarity, title=title, **ordered)
    title = f"{view.name}: tree of tasks by their routing"
    yield "dendrogram", dendrogram(view.tree, title=title, **named)
    yield "dendrogram_radial", radial_dendrogram(view.tree, title=title, **named)
    active = view.mean_probabilities > 0.5
    title = f"{view.name}: skills with a probability above one half ({over})"
    yield "skill_subsets", subset_table(active, title=title, **named)

    points, shares = principal_components(record.weights)
    axes = f"component 1 ({shares[0]:.0%})", f"component 2 ({shares[1]:.0%})"
    title = f"{view.name}: principal components of the tasks' routing"
    trails = [on_components(record.weights, rows) for rows in view.trails.values()]
    if trails:
        title += "; lines: adapted tasks from their first row to their last"
    drawn = task_map(points, title=title, axis_names=axes, trails=trails, **named)
    yield "task_map_pca", drawn
    if importlib.util.find_spec("umap") and len(record.tasks) >= SMALLEST_UMAP:
        title = f"{view.name}: UMAP of the tasks' routing"
        yield "task_map_umap", task_map(umap_projection(record.weights), title=title, **named)

    title = f"{view.name}: statistics of the routing by layer"
    yield "statistics_by_layer", statistics_by_layer(view.statistics, record.groups, title=title)
    if view.curves:
        title = f"{view.name}: statistics of the routing over training"
        yield "statistics_over_training", statistics_over_training(view.curves, title=title)

    if other is not None:
        ours = matched(record.weights, view.pairs)
        pairs = match_skills(ours, other.record.weights)
        both = np.stack([view.mean, matched(other.record.weights, pairs).mean(0)])
        names = [view.name, other.name]
        title = f"{' and '.join(names)}: mixing weights, skills matched, {over}"
        figure = heat_maps(both, names, title=title, **ordered)
        yield f"compare_{re.sub('[^A-Za-z0-9_.-]+', '_', other.name)}", figure


def ablation_map(view: RoutingView, found: Ablation) -> Figure:
    """Draw how tasks change without a skill, beside how much they use it.

    Args:
        view: The run.
        found: What was found, with skills switched off in all groups of layers together.

    Raises:
        CheckpointError: If it is of other tasks or groups than the run.
    """
    record = view.record
    if (found.tasks, found.groups) != (record.tasks, record.groups):
        raise CheckpointError(
            f"what is in '{record.folder}' about skills that are switched off is of other tasks or "
            "layers than its routing. Delete it, and run mttl ablate again"
        )
    weights = matched(record.weights, found.pairs).mean(0)
    unit = "loss" if found.scores is None else "score, points"
    return heat_maps(
        np.stack([weights, found.changes[0]]),
        ["mixing weight", f"{found.quantity} without the skill"],
        record.tasks,
        order=view.order,
        categories=view.categories,
        title=f"{view.name}: what skills are for, {what_mean(view)}",
        changes=f"change of the {unit}",
        less_is_worse=found.scores is not None,
    )


def what_mean(view: RoutingView) -> str:
    """Say what a mean over groups of layers is of."""
    groups = view.record.groups
    if len(groups) == 1:
        return groups[0]
    told = "" if view.members else ", skills matched across them"
    return f"mean over {len(groups)} groups of layers{told}"


def layer_parts(groups: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Share the groups of layers among figures: one per block, or per stack where blocks are few.

    Yields:
        What the figure shows and the ids of its groups, `PANELS` at most; nothing for one group.
    """
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
