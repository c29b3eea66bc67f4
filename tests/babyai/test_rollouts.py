"""Rollouts: what is played, what stands in them, and where they go on."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.interface import Observation, Transition, VectorEnv
from envs.vector import make_vector_env
from envs.vocabulary import MISSION_LENGTH, N_TOKENS
from helpers.babyai import TINY
from helpers.trainer import quiet_trainer
from mttl.babyai.build_policy import build_policies
from mttl.babyai.policy import Policy
from mttl.babyai.rl.learning_curve import EpisodeLog
from mttl.babyai.rollouts import RolloutLoader, sample_actions
from mttl.babyai.train import learning_of
from mttl.config.babyai_schema import Ppo
from mttl.config.load import load_any_config
from mttl.io import yaml12
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory

LEVELS = ("GoToObjS4", "GoToRedBallNoDists")
SETTINGS = Ppo(
    **{"n_steps": 6, "recurrence": 3, "n_epochs": 2, "n_minibatches": 2},
    **{"discount": 0.9, "gae_lambda": 0.8, "reward_scale": 20.0},
)


def policies(n_tasks: int = 2) -> ComposedModel:
    torch.manual_seed(0)
    base = Policy(N_TOKENS, n_channels=8, memory_size=8, instruction_size=8, word_size=8)
    inventory = ModuleInventory(base, 3, kind="sparse", init="kaiming", sparsity=0.5)
    return ComposedModel(base, inventory, PolytroponRouter(1, n_tasks, 1, 3, init_scale=1.0))


def loader(model: ComposedModel, n_slots: int = 4) -> RolloutLoader:
    environments = make_vector_env(LEVELS, n_slots, seed=5)
    return RolloutLoader(model, environments, EpisodeLog(LEVELS, 5), SETTINGS, seed=1)


def test_what_is_learned_from_is_what_was_played() -> None:
    """Replayed from its stored memories, the policy finds the same log-probabilities and values."""
    model = policies()
    batches = list(loader(model))
    assert len(batches) == 4
    model.eval()
    for batch in batches:
        logits, values, _ = model(torch.arange(2), *batch.inputs)
        chosen = logits.log_softmax(-1).gather(-1, batch.actions[..., None])[..., 0]
        # The same sums, in another order: one task after another instead of all at once.
        torch.testing.assert_close(chosen, batch.log_probs, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(values, batch.values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n_taken", [0, 1, 3, 4, 6])
def test_a_loader_goes_on_from_any_minibatch(n_taken: int) -> None:
    model = policies()

    def endless(source: RolloutLoader) -> Any:
        while True:
            yield from source

    whole = loader(model)
    batches = endless(whole)
    for _ in range(n_taken):
        next(batches)
    state = whole.state()
    expected = [next(batches) for _ in range(6)]
    resumed = loader(model)
    resumed.load_state(state)
    for found, wanted in zip(endless(resumed), expected, strict=False):
        for name, value in wanted._asdict().items():
            assert torch.equal(getattr(found, name), value), name


def test_rewards_are_scaled_and_nothing_follows_an_end() -> None:
    """An episode that is cut off at the second step, in an environment of one observation."""
    image, mission = np.ones((1, 1, 7, 7, 3), np.uint8), np.ones((1, 1, MISSION_LENGTH), np.uint8)
    seen = Observation(image, np.zeros((1, 1), np.uint8), mission)
    none, reward = np.zeros((1, 1), bool), np.full((1, 1), 0.5, np.float32)
    steps = iter([Transition(seen, reward, none, late) for late in (none, ~none, none)])
    room: Any = SimpleNamespace(
        levels=("GoToObj",), n_slots=1, reset=lambda: seen, step=lambda actions: next(steps)
    )
    settings = Ppo(
        **{"n_steps": 3, "recurrence": 3, "n_epochs": 1, "n_minibatches": 1},
        **{"discount": 0.5, "gae_lambda": 0.0, "reward_scale": 4.0},
    )
    log = EpisodeLog(["GoToObj"], 5)
    batch = RolloutLoader(policies(1), room, log, settings, seed=1).play()
    advantages, values = batch.advantages[0, :, 0], batch.values[0, :, 0]
    # λ = 0: reward and the critic's next value, less its value.
    assert advantages[0] == pytest.approx(2 + 0.5 * values[1].item() - values[0].item(), abs=1e-5)
    assert advantages[1] == pytest.approx(2 - values[1].item(), abs=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("32", None)])
def test_rollouts_are_played_in_the_precision_they_are_learned_from(
    precision, dtype, tmp_path, monkeypatch
) -> None:
    """The ratio of old to new probabilities would be off by rounding before anything is learned."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml12.dump({**TINY, "run": {"dir": str(tmp_path)}}))
    config = load_any_config([str(path)])
    learning = learning_of(config, build_policies(config, LEVELS), LEVELS)
    used = []
    play = RolloutLoader.play

    def spy(self: RolloutLoader) -> Any:
        on = torch.is_autocast_enabled("cpu")
        used.append(torch.get_autocast_dtype("cpu") if on else None)
        return play(self)

    monkeypatch.setattr(RolloutLoader, "play", spy)
    with learning.open_data(quiet_trainer(precision=precision)) as data:
        batch = next(iter(data.train_dataloader()))
    assert used == [dtype]
    assert batch.log_probs.dtype == batch.values.dtype == torch.float32


def test_actions_are_drawn_with_their_probabilities() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0]).expand(20_000, 3)
    actions = sample_actions(logits, torch.Generator().manual_seed(0))
    rates = torch.bincount(actions, minlength=3) / len(actions)
    # Standard errors of rates of 20,000 draws are below 0.0036.
    torch.testing.assert_close(rates, logits[0].softmax(-1), atol=0.0145, rtol=0)


@pytest.mark.parametrize("n_slots", [1, 4])
def test_other_environments_or_some_that_cannot_be_saved_begin_anew(n_slots, monkeypatch) -> None:
    """A share of `rl.global_n_slots` differs in a run that continues on more processes."""
    first = loader(policies())
    next(iter(first))
    if n_slots == 4:
        monkeypatch.setattr(type(first.environments), "state", VectorEnv.state)
        assert "environments" not in first.state()
    other = loader(policies(), n_slots)
    other.load_state(first.state())
    assert other.log.frames.tolist() == first.log.frames.tolist()
    assert other.seen is None
    assert next(iter(other)).inputs[0].shape[0] == 2
