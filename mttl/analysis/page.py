"""One page that shows the routing of a run in a browser, offline: all it needs is inside."""

import base64
import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.html_files import html_text, inside_script
from mttl.analysis.layers import stacks_of
from mttl.analysis.palette import category_looks
from mttl.analysis.routing_record import RoutingRecord
from mttl.analysis.similarity import nearest_tasks
from mttl.analysis.tokens.token_page import token_section
from mttl.analysis.tokens.token_record import TokenRoutingRecord

N_NEAREST = 5
# More steps than this would make the page large; they are thinned out evenly.
MOST_STEPS = 24


def routing_page(
    record: RoutingRecord,
    *,
    categories: Sequence[str],
    similarity: Float[np.ndarray, "T T"],
    order: Int[np.ndarray, "T"],
    tokens: TokenRoutingRecord | None = None,
) -> str:
    """Return a page with a heat map of tasks by skills to look around in.

    It shows any group of layers or their mean, at any recorded step of training; tasks are found by
    name or category; a task's panel lists its weights and the tasks that are most like it.

    Args:
        record: The routing.
        categories: One per task.
        similarity: Of all tasks with all, for the nearest tasks.
        order: The tasks from top to bottom.
        tokens: What tokens chose, shown below.

    Raises:
        ImportError: If plotly, whose JavaScript goes into the page, is not installed.
    """
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": html.escape(f"Routing of {record.folder.resolve().name}"),
        "PLOTLY": get_plotlyjs(),
        "DATA": inside_script(_data(record, categories, similarity, order)),
        "TOKENS": "" if tokens is None else token_section(tokens),
    }
    template = html_text("page.html")
    # One pass: what is put in is not searched for further names.
    return re.sub(r"\{\{(TITLE|PLOTLY|DATA|TOKENS)\}\}", lambda match: parts[match[1]], template)


def _data(
    record: RoutingRecord,
    categories: Sequence[str],
    similarity: Float[np.ndarray, "T T"],
    order: Int[np.ndarray, "T"],
) -> dict[str, Any]:
    looks = category_looks(categories)
    names = ["kept weights"]
    weights = record.weights[None]
    if record.history is not None:
        n_steps = len(record.history.steps)
        chosen = np.linspace(0, n_steps - 1, min(n_steps, MOST_STEPS)).round().astype(int)
        names = [f"step {step:,}" for step in record.history.steps[chosen]] + names
        weights = np.concatenate([record.history.weights[chosen], weights])
    return {
        "tasks": [
            {
                "name": task,
                "category": category,
                "ink": looks[category].ink,
                "nearest": [[int(other), round(float(row[other]), 3)] for other in near],
            }
            for task, category, near, row in zip(
                record.tasks,
                categories,
                nearest_tasks(similarity, N_NEAREST),
                similarity,
                strict=True,
            )
        ],
        "order": order.tolist(),
        "groups": [
            {"name": name, "stack": stack}
            for name, stack in zip(record.groups, stacks_of(record.groups), strict=True)
        ],
        "steps": names,
        "nSkills": record.weights.shape[2],
        # (S, G, T, K), little-endian: a sixth of the size of the numbers as text.
        "weights": base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii"),
    }
