"""Runs made up for the analysis: what a training run leaves behind of its routing."""

from pathlib import Path

import numpy as np
import pytest

from helpers.routing_runs import write_run  # noqa: F401
from mttl.analysis.routing_record import RoutingHistory, RoutingRecord
from mttl.analysis.routing_view import RoutingView
from mttl.tasks.task_file import crossfit


@pytest.fixture(scope="session")
def crossfit_view() -> RoutingView:
    """All 160 tasks of CrossFit; tasks of a category have the same routing, up to noise."""
    info = crossfit()
    groups = tuple(
        f"{stack}.layers.{block}.self_attn.{name}"
        for stack in ("encoder", "decoder")
        for block in range(2)
        for name in ("q_proj", "v_proj")
    )
    categories = tuple(task.category for task in info.values())
    generator = np.random.default_rng(0)
    shape = len(groups), 8
    centres = {name: 2 * generator.normal(size=shape) for name in sorted(set(categories))}
    logits = np.stack([centres[name] + generator.normal(size=shape) for name in categories], 1)
    probabilities = 1 / (1 + np.exp(-logits))
    weights = probabilities / probabilities.sum(-1, keepdims=True)
    history = RoutingHistory(
        np.array([0, 500, 1000]),
        np.stack([share * weights + (1 - share) / 8 for share in (0, 0.5, 1)]),
    )
    record = RoutingRecord(Path("crossfit"), tuple(info), groups, weights, probabilities, history)
    return RoutingView(record, categories)
