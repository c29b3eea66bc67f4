"""The routing of a run, with cached similarities, trees and statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.clustering import task_tree
from mttl.analysis.projection import task_similarity
from mttl.analysis.routing_record import Curves, RoutingRecord
from mttl.analysis.skill_matching import align_groups, matched
from mttl.analysis.statistics import effective_skills_over_training, layer_statistics
from mttl.analysis.token_record import TokenRoutingRecord
from mttl.io.errors import TaskError, some


@dataclass(frozen=True)
class RoutingView:
    """The routing of a run as tables, figures and the interactive page show it."""

    record: RoutingRecord
    categories: tuple[str, ...]  # of every task
    # Routing weights of adapted tasks over their adaptation, by name.
    trails: Mapping[str, Float[np.ndarray, "S G K"]] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # names of skills that are members of a library
    tokens: TokenRoutingRecord | None = None  # if tokens choose experts
    policies: bool = False  # tasks are levels that policies play

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.record.folder.resolve().name

    @cached_property
    def similarity(self) -> Float[np.ndarray, "T T"]:
        """The similarity of the tasks' routing: the correlation of their mixing weights."""
        return task_similarity(self.record.weights)

    @cached_property
    def pairs(self) -> Int[np.ndarray, "G K"]:
        """The skills of every group of layers in the common order.

        Members of a library are in the order of the tasks with their names.
        """
        if not self.members:
            return align_groups(self.record.weights)
        names = [*(self.record.tasks[task] for task in self.order), *self.members]
        order = sorted(range(len(self.members)), key=lambda skill: names.index(self.members[skill]))
        return np.tile(order, (len(self.record.groups), 1))

    @property
    def skills(self) -> list[str]:
        """The names of the skills in that order; empty if they have only numbers."""
        return [self.members[skill] for skill in self.pairs[0]] if self.members else []

    @cached_property
    def mean(self) -> Float[np.ndarray, "T K"]:
        """The mean of the mixing weights over groups of layers with matched skills."""
        return matched(self.record.weights, self.pairs).mean(0)

    @cached_property
    def tree(self) -> Float[np.ndarray, "T-1 4"]:
        """The tree of tasks."""
        return task_tree(self.similarity)

    @cached_property
    def order(self) -> Int[np.ndarray, "T"]:
        """The tasks in the order of the tree."""
        from scipy.cluster.hierarchy import leaves_list

        return leaves_list(self.tree)

    @cached_property
    def statistics(self) -> Float[np.ndarray, "G 4"]:
        """The statistics of every group of layers."""
        return layer_statistics(self.record.probabilities)

    @cached_property
    def curves(self) -> Curves:
        """The statistics over training: the logged ones, and effective skills of the history."""
        curves = dict(self.record.curves)
        if self.record.history is not None:
            steps, weights = self.record.history.steps, self.record.history.weights
            found = effective_skills_over_training(weights, self.record.groups)
            curves |= {name: (steps, values) for name, values in found.items()}
        return curves

    def aligned_with(self, first: "RoutingView") -> "RoutingView":
        """Return this run with tasks and groups of layers in the order of another."""
        one, other = first.record, self.record
        runs, hint = f"'{one.folder}' and '{other.folder}'", "Compare runs of different seeds"
        for what in ("tasks", "groups"):
            names = sorted(set(getattr(one, what)) ^ set(getattr(other, what)))
            if names:
                raise TaskError(f"{runs} differ in {what}: only one has {some(names)}. {hint}")
        n_skills = one.weights.shape[2], other.weights.shape[2]
        if n_skills[0] != n_skills[1]:
            raise TaskError(f"{runs} have {n_skills[0]} and {n_skills[1]} skills. {hint}")
        groups = [other.groups.index(group) for group in one.groups]
        tasks = [other.tasks.index(task) for task in one.tasks]
        cells = np.ix_(groups, tasks)
        cut = {"weights": other.weights[cells], "probabilities": other.probabilities[cells]}
        record = replace(other, tasks=one.tasks, groups=one.groups, history=None, **cut)
        categories = tuple(self.categories[task] for task in tasks)
        return RoutingView(record, categories, members=self.members)
