"""An interactive page of runs: one HTML file that works offline, without any library."""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from mttl.analysis.clustering import tree_joints
from mttl.analysis.explore import run_facts
from mttl.analysis.palette import category_looks
from mttl.analysis.projection import on_components, principal_components, task_similarity
from mttl.analysis.routing_record import RoutingRecord, read_ablation
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import group_agreement, match_skills, matched
from mttl.analysis.statistics import stacks_of
from mttl.analysis.token_record import token_data
from mttl.io.errors import TaskError

N_NEAREST = 5
# Largest number of steps on the page; more are subsampled evenly.
MOST_STEPS = 24
LARGEST = 2**16 - 1
PARTS = ("page.css", "core.js", "charts.js", "panel.js", "tokens.js", "start.js")
LIVE_PARTS = ("live.html", "live.js")
TASK_TERMS = {
    **{"task": "task", "category": "category", "scores": "Scores", "on": "on", "last": "gain"},
    "about": "Bars are scores in %; ticks are the scores of two baselines: copying the input (▏) "
    "and the most frequent answer (┃). Gain is the difference to the better baseline.",
}
LEVEL_TERMS = {
    **{"task": "level", "category": "competency", "scores": "Success rates", "on": "with"},
    "last": "steps",
    "about": "Bars are success rates in %: the share of evaluation episodes in which the policy "
    "reaches the goal. Steps are the mean length of an episode.",
}


def explore_page(runs: Sequence[RoutingView], live: Mapping[str, Any] | None = None) -> str:
    """Return an interactive page with scores, curves, map and tree of tasks, skills and answers.

    The tasks of policies are called levels; films of their episodes replace the answers.
    Skills are numbered in one order for all groups of layers. Those of a further run are matched
    to the first run's if both have the same tasks, layers and number of skills.

    Raises:
        CheckpointError: If a file of a run is damaged.
    """
    data = [_run(run, runs[0] if number else None) for number, run in enumerate(runs)]
    names = " and ".join(run.name for run in runs)
    terms = LEVEL_TERMS if all(run.policies for run in runs) else TASK_TERMS
    shown = inside_script({"runs": data, "live": live, "terms": terms})
    parts = {"TITLE": html.escape(names), "DATA": shown} | terms
    parts |= {name: html_text(name) for name in PARTS}
    parts |= {name: html_text(name) if live else "" for name in LIVE_PARTS}
    # One pass, so that inserted text is not searched for further names.
    return re.sub(r"\{\{([A-Za-z.]+)\}\}", lambda match: parts[match[1]], html_text("page.html"))


def _run(view: RoutingView, first: RoutingView | None) -> dict[str, Any]:
    record = view.record
    folder, pairs, note = record.folder, view.pairs, ""
    if first is not None:
        try:
            # Tasks of both runs in one order; groups of layers keep their order.
            other = view.aligned_with(first)
            groups = [first.record.groups.index(group) for group in record.groups]
            ours = matched(first.record.weights, first.pairs)
            pairs = match_skills(ours, other.record.weights)[groups]
            note = f"Skills are matched to those of {first.name}."
        except TaskError:
            note = f"Skills are not matched to {first.name}: tasks, layers or skills differ."
    adapted = run_facts.read_adapted(folder)
    weights = np.concatenate(
        [record.weights, *(rows[task["kept"]][:, None] for task, rows in adapted)], axis=1
    )
    means, steps, places = _over_training(view, pairs)
    points, shares = principal_components(record.weights)
    curves, of_tasks = run_facts.read_run_curves(folder, record.tasks)
    scores = run_facts.read_scores(folder)
    looks = category_looks(view.categories)
    tasks = [
        {
            "name": task,
            "category": category,
            "scores": scores.get(task, []),
            "answers": run_facts.read_answers(folder, task),
            "films": run_facts.read_films(folder, task),
            "curves": of_tasks.get(task, {}),
        }
        for task, category in zip(record.tasks, view.categories, strict=True)
    ]
    for task, rows in adapted:
        trail = [_short(point) for point in on_components(record.weights, rows)]
        tasks.append(task | {"trail": trail})
    near = task_similarity(weights)[:, : len(record.tasks)]
    np.fill_diagonal(near, -np.inf)
    for task, likeness in zip(tasks, near, strict=True):
        best = np.argsort(-likeness, kind="stable")[: min(N_NEAREST, len(record.tasks) - 1)]
        task["nearest"] = [[int(other), round(float(likeness[other]), 3)] for other in best]
    leaves, joints = tree_joints(view.tree)
    agreement = group_agreement(record.weights, n_permutations=20)
    return {
        "name": view.name,
        "note": note,
        "nSkills": record.weights.shape[2],
        "nTasks": len(record.tasks),
        "mean": scores.get("mean", []),
        "curves": curves,
        "looks": {name: [look.fill, look.ink, look.marker] for name, look in looks.items()},
        "tasks": tasks,
        "order": [int(leaf) for leaf in leaves],
        "joints": [[_short(places), _short(distances)] for places, distances in joints],
        "points": [_short(point) for point in points],
        "shares": _short(shares),
        "groups": [
            {"name": name, "stack": stack}
            for name, stack in zip(record.groups, stacks_of(record.groups), strict=True)
        ],
        "agreement": None if agreement is None else _short([agreement.value, agreement.mean]),
        # Skills in the common order, shape (G, tasks and adapted tasks, K).
        "weights": _packed(matched(weights, pairs)),
        "steps": steps,
        "means": _packed(means),
        "places": [[_short(point) for point in step] for step in places],
        "ablation": _ablation(record, pairs),
        "tokens": None if view.tokens is None else token_data(view.tokens, policies=view.policies),
    }


def _over_training(view: RoutingView, pairs: np.ndarray) -> tuple[np.ndarray, list[str], list]:
    """Return mean weights (S, T, K), names of the steps, and points on the map (S, T, 2)."""
    record = view.record
    names, weights = ["kept weights"], record.weights[None]
    if record.history is not None:
        n_steps = len(record.history.steps)
        chosen = np.linspace(0, n_steps - 1, min(n_steps, MOST_STEPS)).round().astype(int)
        names = [f"step {step:,}" for step in record.history.steps[chosen]] + names
        weights = np.concatenate([record.history.weights[chosen], weights])
    means = np.stack([matched(step, pairs).mean(0) for step in weights])
    return means, names, [on_components(record.weights, step.swapaxes(0, 1)) for step in weights]


def _ablation(record: RoutingRecord, pairs: np.ndarray) -> dict[str, Any] | None:
    """Return the changes in the page's order of skills, if the ablation covers all groups."""
    found = read_ablation(record.folder)
    if found is None or (found.tasks, found.groups) != (record.tasks, record.groups):
        return None
    own = {tuple(column): skill for skill, column in enumerate(found.pairs.T.tolist())}
    order = [own.get(tuple(column)) for column in pairs.T.tolist()]
    if len(found.layers) > 1 or None in order:
        return None
    changes = np.round(found.changes[0][:, order], 3).tolist()
    return {"quantity": found.quantity, "lessIsWorse": found.scores is not None, "changes": changes}


def _packed(values: np.ndarray) -> dict[str, Any]:
    """Return an array as 16-bit steps of its range."""
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low or 1.0) * LARGEST
    data = base64.b64encode(scaled.round().astype("<u2").tobytes()).decode("ascii")
    return {"shape": list(values.shape), "low": low, "high": high, "data": data}


def _short(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def html_text(name: str) -> str:
    """Return the text of a file of this package, with placeholders in double braces."""
    return resources.files("mttl.analysis.explore").joinpath(name).read_text("utf-8")


def inside_script(data: Any) -> str:
    """Return JSON that cannot end a script element or open a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
