"""Rollouts: what is played, what stands in them, and where they go on."""

from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.interface import Observation, Transition
from envs.vector import make_vector_env
from envs.vocabulary import MISSION_LENGTH, N_TOKENS
from mttl.babyai.agent import sample_actions
from mttl.babyai.collector import RolloutCollector
from mttl.babyai.policy import Policy
from mttl.babyai.rl.episode_log import EpisodeLog
from mttl.babyai.rollouts import RolloutDataModule, RolloutLoader
from mttl.config.babyai_schema import Ppo
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.composed.composed_model import ComposedModel
from mttl.skills.composed.module_inventory import ModuleInventory

LEVELS = ("GoToObjS4", "GoToRedBallNoDists")
SETTINGS = Ppo(
    **{"n_steps": 6, "recurrence": 3, "n_epochs": 2, "n_minibatches": 2},
    **{"discount": 0.9, "gae_lambda": 0.8, "reward_scale": 20.0},
    normalise_advantages="none",
    bootstrap_truncated=False,
)


def policies(n_tasks: int = 2) -> ComposedModel:
    torch.manual_seed(0)
    base = Policy(N_TOKENS, n_channels=8, memory_size=8, instruction_size=8, word_size=8)
    inventory = ModuleInventory(base, 3, kind="sparse", init="kaiming", sparsity=0.5)
    return ComposedModel(base, inventory, PolytroponRouter(1, n_tasks, 1, 3, init_scale=1.0))


def loader(model: ComposedModel, settings: Ppo = SETTINGS) -> RolloutLoader:
    environments = make_vector_env(LEVELS, 4, seed=5)
    collector = RolloutCollector(model, environments, EpisodeLog(LEVELS, 5), seed=1)
    return RolloutLoader(collector, settings, seed=2)


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


def test_every_sequence_comes_once_per_pass() -> None:
    first, second, third, fourth = loader(policies())
    for one, other in ((first, second), (third, fourth)):
        assert one.actions.shape == (2, 3, 4)  # tasks, steps, half of 2 × 4 sequences
        both = torch.cat([one.log_probs, other.log_probs], dim=2)
        assert len(both.flatten().unique()) == both.numel()
    passes = [torch.cat(pair, dim=2).flatten(1).sort().values for pair in (
        (first.log_probs, second.log_probs), (third.log_probs, fourth.log_probs)
    )]  # fmt: skip
    assert torch.equal(*passes)


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
    state = RolloutDataModule(whole).state_dict()
    expected = [next(batches) for _ in range(6)]
    resumed = loader(model)
    RolloutDataModule(resumed).load_state_dict(state)
    for found, wanted in zip(endless(resumed), expected, strict=False):
        for name, value in vars(wanted).items():
            assert torch.equal(getattr(found, name), value), name


def test_rewards_are_scaled_and_values_of_truncated_episodes_added() -> None:
    """An episode that is cut off at the second step, in an environment of one observation."""

    class OneRoom:
        levels, n_slots = ("GoToObj",), 1

        def __init__(self) -> None:
            self.n = 0
            shape = (1, 1)
            self.seen = Observation(
                np.ones((*shape, 7, 7, 3), np.uint8),
                np.zeros(shape, np.uint8),
                np.ones((*shape, MISSION_LENGTH), np.uint8),
            )

        def reset(self) -> Observation:
            return self.seen

        def step(self, actions: np.ndarray) -> Transition:
            self.n += 1
            late = np.full((1, 1), self.n == 2)
            final = Observation(
                2 * self.seen.image[0], self.seen.direction[0], self.seen.mission[0]
            )
            return Transition(
                self.seen,
                np.full((1, 1), 0.5, np.float32),
                np.zeros((1, 1), bool),
                late,
                final if late.any() else None,
            )

    def advantages(bootstrap: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        settings = Ppo(
            **{"n_steps": 3, "recurrence": 3, "n_epochs": 1, "n_minibatches": 1},
            **{"discount": 0.5, "gae_lambda": 0.0, "reward_scale": 4.0},
            normalise_advantages="none",
            bootstrap_truncated=bootstrap,
        )
        room: Any = OneRoom()
        collector = RolloutCollector(policies(1), room, EpisodeLog(["GoToObj"], 5), seed=1)
        batch = collector.play(settings)
        return batch.advantages[0, :, 0], batch.values[0, :, 0], collector.memory

    plain, values, memory = advantages(bootstrap=False)
    # λ = 0: reward and the critic's next value, less its value; nothing follows an end.
    assert plain[0] == pytest.approx(2 + 0.5 * values[1].item() - values[0].item(), abs=1e-5)
    assert plain[1] == pytest.approx(2 - values[1].item(), abs=1e-5)
    more, _, same_memory = advantages(bootstrap=True)
    assert torch.equal(more[[0, 2]], plain[[0, 2]])
    assert more[1] != plain[1]
    # Looking at the end of an episode leaves no trace in what the policy remembers.
    assert memory.abs().sum() > 0
    assert torch.equal(same_memory, memory)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("32", None)])
def test_rollouts_are_played_in_the_precision_they_are_learned_from(
    precision, dtype, monkeypatch
) -> None:
    """The ratio of old to new probabilities would be off by rounding before anything is learned."""
    rollouts = loader(policies())
    used = []
    play = rollouts.collector.play

    def spy(settings: Ppo) -> Any:
        on = torch.is_autocast_enabled("cpu")
        used.append(torch.get_autocast_dtype("cpu") if on else None)
        return play(settings)

    monkeypatch.setattr(rollouts.collector, "play", spy)
    data = RolloutDataModule(rollouts)
    data.trainer = pl.Trainer(
        precision=precision, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    batch = next(iter(data.train_dataloader()))
    assert used == [dtype]
    assert batch.log_probs.dtype == batch.values.dtype == torch.float32


def test_actions_are_drawn_with_their_probabilities() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0]).expand(20_000, 3)
    actions = sample_actions(logits, torch.Generator().manual_seed(0))
    rates = torch.bincount(actions, minlength=3) / len(actions)
    # Standard errors of rates of 20,000 draws are below 0.0036.
    torch.testing.assert_close(rates, logits[0].softmax(-1), atol=0.0145, rtol=0)


def test_environments_that_cannot_be_saved_begin_anew() -> None:
    first = loader(policies())
    next(iter(first))
    collector: Any = first.collector

    def refuse() -> bytes:
        raise NotImplementedError

    collector.environments.state = refuse
    state = first.state()
    assert "environments" not in state["player"]
    other = loader(policies())
    other.load_state(state)
    assert other.collector.seen is None
    assert other.collector.log.frames.tolist() == first.collector.log.frames.tolist()
