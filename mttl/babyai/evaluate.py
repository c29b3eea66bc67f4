"""Evaluation of policies on fixed episodes of every level, which training does not use."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from envs.episodes import Episodes, run_episodes
from envs.interface import Observation, VectorEnv, slot_seed
from envs.vector import make_vector_env
from mttl.babyai.cell_choices import CellChoices
from mttl.babyai.rollouts import Agent, sample_actions
from mttl.runtime.progress_bar import counting
from mttl.runtime.text_table import TextTable
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.predictions import Result

# Number of parallel episodes; it must not depend on the machine, since sampled actions use one
# stream of random numbers.
N_SLOTS = 25
Choice = Literal["greedy", "sampled"]


def play_levels(
    model: ComposedModel,
    levels: Sequence[str],
    status: Console | None = None,
    *,
    n_episodes: int,
    seed: int,
    choose: Choice,
    max_steps: int | None = None,
    tasks: Sequence[int] | None = None,
    choices: CellChoices | None = None,
) -> Episodes:
    """Return the first episodes of every level, played by the model's tasks, by default in order.

    The model plays in evaluation mode. The seed is that of episodes and sampled actions. An episode
    that has not ended after ``max_steps``, or at the limit of its level, is no success. Choices of
    experts are added to ``choices``.
    """
    n_slots = min(N_SLOTS, n_episodes)
    environments = make_vector_env(levels, n_slots, seed=seed, evaluation=True, max_steps=max_steps)
    shown, total = status or Console(quiet=True), len(levels) * n_episodes
    with counting(shown, f"playing, {choose}", total) as count:
        how = n_episodes, choose, seed, count.advance, choices
        return _play(model, tasks or range(len(levels)), environments, *how)[0]


def play_episode(
    model: ComposedModel,
    task: int,
    level: str,
    episode: int,
    *,
    seed: int,
    choose: Choice,
    max_steps: int | None = None,
) -> tuple[list[int], bool]:
    """Return the actions of one episode of `play_levels`, and whether it succeeded."""
    limit = {"evaluation": True, "max_steps": max_steps}
    environments = make_vector_env([level], 1, seed=seed, first_slot=episode, **limit)
    own = slot_seed(seed, level, episode, evaluation=True)
    played, actions = _play(model, [task], environments, 1, choose, own)
    return [int(action.item()) for action in actions], bool(played.success.item())


@torch.no_grad()
def _play(
    model: ComposedModel,
    tasks: Sequence[int],
    environments: VectorEnv,
    n_episodes: int,
    choose: Choice,
    seed: int,
    on_episode: Callable[[], object] = lambda: None,
    choices: CellChoices | None = None,
) -> tuple[Episodes, list[np.ndarray]]:
    """Return episodes of some tasks' levels, and the actions of every step."""
    training = model.training
    model.eval()
    agent = Agent(model, tasks, environments.n_slots)
    generator = torch.Generator().manual_seed(seed)
    actions: list[np.ndarray] = []

    def act(seen: Observation, begins: np.ndarray, alive: np.ndarray) -> np.ndarray:
        with choices.counting(seen.image, alive) if choices else nullcontext():
            logits, _ = agent(seen, begins)
        chosen = logits.argmax(-1) if choose == "greedy" else sample_actions(logits, generator)
        actions.append(chosen.cpu().numpy())
        return actions[-1]

    try:
        return run_episodes(environments, act, n_episodes, on_episode), actions
    finally:
        environments.close()
        model.train(training)


def episode_results(
    episodes: Episodes, levels: Sequence[str], sample: str, seed: int
) -> list[Result]:
    """Return success rate and mean number of steps of every level, and their means."""
    n = episodes.success.shape[1]
    found = []
    for metric, values in (("success", episodes.success), ("steps", episodes.steps)):
        means = values.mean(1)
        rows = [*zip(levels, means, [n] * len(means), strict=True)]
        rows.append(("mean", means.mean(), n * len(levels)))
        found += [
            Result(task, "evaluation", sample, seed, metric, float(x), n) for task, x, n in rows
        ]
    return found


def episode_table(results: Sequence[Result]) -> Table:
    """Return a table of success rates (%) and mean steps: a row per level, a column per choice."""
    samples = list(dict.fromkeys(result.sample for result in results))
    headings = [heading for sample in samples for heading in (sample, "steps")]
    table = TextTable("Success rate (%) and mean steps per level").words("level").numbers(*headings)
    cells: dict[str, list[str]] = {}
    for row in results:  # by sample, success before steps
        factor = 100 if row.metric == "success" else 1
        cells.setdefault(row.task, []).append(f"{factor * row.score:.1f}")
    for level, own in cells.items():
        if level == "mean":
            table.add_section()
        table.add_row(level, *own)
    return table
