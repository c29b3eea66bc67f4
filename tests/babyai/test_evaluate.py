"""Evaluation episodes of policies: fixed, and scored per level."""

import io

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.episodes import Episodes
from envs.vocabulary import N_TOKENS
from mttl.babyai.evaluate import episode_results, episode_table, play_levels
from mttl.babyai.policy import Policy
from mttl.routing.task.fixed import SharedRouter
from mttl.runtime import progress_bar
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory


def test_the_same_seed_is_the_same_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file tells the time left."""
    base = Policy(N_TOKENS, n_channels=8, memory_size=8, instruction_size=8, word_size=8)
    inventory, levels = ModuleInventory(base, 1, kind="dense"), ["GoToObjS4", "GoToObjS6"]
    model = ComposedModel(base, inventory, SharedRouter(1, 2)).train()
    monkeypatch.setattr(progress_bar, "SECONDS_BETWEEN_LINES", 0.0)
    to = Console(file=io.StringIO(), width=200)
    first, second, other = (
        play_levels(model, levels, to, n_episodes=3, seed=seed, choose="sampled")
        for seed in (1, 1, 2)
    )
    assert "playing, sampled: 5 of 6, about " in to.file.getvalue()
    np.testing.assert_array_equal(first.steps, second.steps)
    assert first.steps.shape == (2, 3)
    assert not np.array_equal(first.steps, other.steps)
    assert model.training


def test_results_are_means_per_level_and_over_levels() -> None:
    episodes = Episodes(
        success=np.array([[True, False], [True, True]]),
        steps=np.array([[2, 4], [6, 8]]),
        reward=np.zeros((2, 2), np.float32),
    )
    results = episode_results(episodes, ["A", "B"], "greedy", 13)
    assert [(row.task, row.metric, row.score, row.n) for row in results] == [
        *(("A", "success", 0.5, 2), ("B", "success", 1.0, 2), ("mean", "success", 0.75, 4)),
        *(("A", "steps", 3.0, 2), ("B", "steps", 7.0, 2), ("mean", "steps", 5.0, 4)),
    ]
    table = episode_table(results)
    assert list(table.columns[0].cells) == ["A", "B", "mean"]
    assert list(table.columns[1].cells) == ["50.0", "100.0", "75.0"]
    assert list(table.columns[2].cells) == ["3.0", "7.0", "5.0"]
