"""Evaluates policies on fixed episodes of every level, none of them met in training."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from envs.episodes import Episodes, episode_seed, run_episodes
from envs.interface import Observation
from envs.vector import make_vector_env
from mttl.babyai.agent import Agent, sample_actions
from mttl.babyai.rl.missions import without_padding
from mttl.runtime.progress_bar import counting
from mttl.runtime.text_table import TextTable
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.predictions import Result

# So many episodes are played side by side; the number must not depend on the machine, because the
# random numbers of sampled actions are dealt to them in turn.
N_SLOTS = 25
SPLIT = "evaluation"
Choice = Literal["greedy", "sampled"]


def play_levels(
    model: ComposedModel,
    levels: Sequence[str],
    status: Console | None = None,
    *,
    n_episodes: int,
    seed: int,
    choose: Choice,
) -> Episodes:
    """Play the first episodes of every level; task t of the model plays level t.

    Args:
        model: Put into evaluation mode meanwhile.
        levels: Names of T levels.
        status: Where progress is shown; nowhere by default.
        n_episodes: Episodes of every level, E.
        seed: Of the episodes, and of sampled actions.
        choose: Take the most likely action, or draw one.
    """
    n_slots = min(N_SLOTS, n_episodes)
    environments = make_vector_env(levels, n_slots, seed=seed, evaluation=True)
    training = model.training
    model.eval()
    agent = Agent(model, len(levels), n_slots)
    generator = torch.Generator().manual_seed(seed)

    def act(seen: Observation, begins: np.ndarray, alive: np.ndarray) -> np.ndarray:
        logits, _ = agent(seen, begins)
        return _chosen(logits, choose, generator).cpu().numpy()

    try:
        shown, total = status or Console(quiet=True), len(levels) * n_episodes
        with torch.no_grad(), counting(shown, f"playing, {choose}", total) as count:
            return run_episodes(environments, act, n_episodes, count.advance)
    finally:
        environments.close()
        model.train(training)


@torch.no_grad()
def play_episode(
    policy: nn.Module, level: str, episode: int, *, seed: int, choose: Choice
) -> tuple[list[int], bool]:
    """Play one of the episodes that `play_levels` plays.

    Returns:
        The actions, and whether they fulfilled the mission.
    """
    environment = make_vector_env([level], 1, seed=seed, evaluation=True, first_slot=episode)
    generator = torch.Generator().manual_seed(episode_seed(seed, level, episode))
    device = next(policy.parameters()).device
    memory = torch.zeros(1, 2 * policy.memory_size, device=device)  # type: ignore[operator]
    index = torch.zeros(1, 1, dtype=torch.long, device=device)
    actions: list[int] = []

    def act(seen: Observation, begins: np.ndarray, alive: np.ndarray) -> np.ndarray:
        nonlocal memory
        logits, _, memory = policy(
            torch.from_numpy(seen.image).to(device),
            without_padding(torch.from_numpy(seen.mission[0])).to(device),
            index,
            memory,
            torch.zeros_like(index, dtype=torch.bool),  # it begins with an empty memory
        )
        action = _chosen(logits[0], choose, generator).cpu().numpy()  # (1,)
        actions.append(action.item())
        return action[None]

    try:
        played = run_episodes(environment, act, 1)
        return actions, bool(played.success.item())
    finally:
        environment.close()


def _chosen(logits: Tensor, choose: Choice, generator: torch.Generator) -> Tensor:
    return logits.argmax(-1) if choose == "greedy" else sample_actions(logits, generator)


def episode_results(
    episodes: Episodes, levels: Sequence[str], sample: str, seed: int
) -> list[Result]:
    """Return the success rate and the mean number of steps of every level, and their means."""
    n = episodes.success.shape[1]
    found = []
    for metric, values in (("success", episodes.success), ("steps", episodes.steps)):
        means = values.mean(1)
        found += [
            Result(level, SPLIT, sample, seed, metric, float(mean), n)
            for level, mean in zip(levels, means, strict=True)
        ]
        found.append(
            Result("mean", SPLIT, sample, seed, metric, float(means.mean()), n * len(levels))
        )
    return found


def episode_table(results: Sequence[Result]) -> Table:
    """Return success rates (%) and mean steps, a row per level and a column per choice."""
    samples = list(dict.fromkeys(result.sample for result in results))
    headings = [heading for sample in samples for heading in (sample, "steps")]
    table = TextTable("Success per level (%), and steps").words("level").numbers(*headings)
    cells: dict[str, list[str]] = {}
    for sample in samples:
        for metric, factor in (("success", 100), ("steps", 1)):
            for row in results:
                if (row.sample, row.metric) == (sample, metric):
                    cells.setdefault(row.task, []).append(f"{factor * row.score:.1f}")
    for level, own in cells.items():
        if level == "mean":
            table.add_section()
        table.add_row(level, *own)
    return table
