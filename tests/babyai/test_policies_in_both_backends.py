"""A policy trained in one backend does as well in the other.

The first episode of 600 environments of each level and backend: were the success rates 80 and 89 %,
Fisher's test would find it at the level 0.001 in nine of ten cases. A policy that has learned
nothing would do equally badly in both, so the rates have to be above those before training.
"""

from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from scipy import stats

from helpers.babyai import TINY
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")
pytest.importorskip("envpool", reason="needs the extra `envpool`")

from envs.vector import make_vector_env
from mttl.babyai.agent import Agent, sample_actions
from mttl.babyai.build_policy import build_policies
from mttl.babyai.train import learning_of
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config
from mttl.skills.composed.composed_model import ComposedModel

LEVELS = ["GoToRedBallNoDists", "GoToObjS4"]
N_EPISODES = 600
SIGNIFICANCE = 1e-3
LEARNED = 0.1  # more than before training


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["minigrid", "envpool"])
def test_a_policy_does_as_well_in_the_other(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml12.dump(TINY))
    larger = ["rl.n_slots=16", "rl.ppo.n_steps=40", "rl.ppo.recurrence=20", "optim.lr=3e-3"]
    larger += ["rl.policy.n_channels=16", "rl.policy.memory_size=32", f"rl.levels={LEVELS}"]
    config = load_any_config(str(path), [*larger, f"rl.backend={backend}", "skills.n_skills=2"])
    assert isinstance(config, BabyAIConfig)
    pl.seed_everything(3, verbose=False)
    model = build_policies(config, LEVELS)
    before, _ = first_episodes(model.eval(), "minigrid")
    train(config, model)
    results = {name: first_episodes(model, name) for name in ("minigrid", "envpool")}
    for number, level in enumerate(LEVELS):
        (ours, our_steps), (theirs, their_steps) = (
            (success[number], steps[number]) for success, steps in results.values()
        )
        assert min(ours.mean(), theirs.mean()) > before[number].mean() + LEARNED, level
        table = [[ours.sum(), (~ours).sum()], [theirs.sum(), (~theirs).sum()]]
        _, p_value = stats.fisher_exact(table)
        assert p_value > SIGNIFICANCE, (level, table)
        _, p_value = stats.mannwhitneyu(our_steps[ours], their_steps[theirs])
        assert p_value > SIGNIFICANCE, level


def train(config: BabyAIConfig, model: ComposedModel) -> None:
    learning = learning_of(config, model, LEVELS)
    trainer = pl.Trainer(
        max_epochs=60,
        gradient_clip_val=0.5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with learning.open_data(0) as data:
        trainer.fit(learning.module, datamodule=data)
    model.eval()


@torch.no_grad()
def first_episodes(model: ComposedModel, backend: str) -> tuple[np.ndarray, np.ndarray]:
    """Return success and steps (T, N) of every environment's first episode."""
    env = make_vector_env(LEVELS, N_EPISODES, seed=77, backend=backend)  # type: ignore[arg-type]
    agent = Agent(model, len(LEVELS), N_EPISODES)
    generator = torch.Generator().manual_seed(5)
    seen, begins = env.reset(), np.ones((len(LEVELS), N_EPISODES), bool)
    success, steps = np.zeros_like(begins), np.zeros(begins.shape, int)
    running = begins.copy()
    while running.any():
        logits, _ = agent(seen, begins)
        change = env.step(sample_actions(logits, generator).numpy())
        seen, begins = change.observation, change.terminated | change.truncated
        steps += running
        success |= running & change.terminated & (change.reward > 0)
        running &= ~begins
    env.close()
    return success, steps
