"""Rollouts of a policy as training data: played when an epoch begins, handed out in minibatches.

One epoch of Lightning is one rollout. The loader keeps what a resumed run needs to go on exactly:
the environments, the policy's memory, and the rollout that is being learned from.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from envs.vector import Observation, Transition, VectorEnv
from mttl.rl.episode_log import EpisodeLog
from mttl.rl.gae import generalised_advantages, normalise_advantages
from mttl.rl.missions import without_padding
from mttl.rl.ppo import action_log_probs
from mttl.rl.rollout import Step, stack_steps
from mttl.rl.sequences import Sequences, cut_sequences, minibatches
from mttl.skills.compose import ComposedModel


@dataclass(frozen=True)
class RolloutSettings:
    """How rollouts are played and cut; see `mttl.rl`.

    Args:
        n_steps: Steps of every environment.
        recurrence: Steps of a sequence.
        n_epochs: Passes over a rollout.
        n_minibatches: Minibatches of a pass.
        discount: γ.
        gae_lambda: λ.
        reward_scale: Factor on rewards.
        normalise_advantages: ``"none"``, ``"all"`` or ``"task"``.
        bootstrap_truncated: Add the value of the last observation where the time was up.
    """

    n_steps: int
    recurrence: int
    n_epochs: int
    n_minibatches: int
    discount: float
    gae_lambda: float
    reward_scale: float
    normalise_advantages: str
    bootstrap_truncated: bool


class Acting:
    """The policies of all tasks, acting side by side: their parameters are mixed once.

    Make it anew when weights have changed.

    Args:
        model: In evaluation mode: noise in the routing would change the policy from rollout to
            learning.
        n_tasks: Tasks T.
        n_slots: Environments of each, N.
        memory: What they remember; nothing by default.

    Attributes:
        memory: Shape (T, N, 2 × memory size).
    """

    def __init__(
        self, model: ComposedModel, n_tasks: int, n_slots: int, memory: Tensor | None = None
    ) -> None:
        self.model = model
        self.device = model.device
        if memory is None:
            memory = torch.zeros(n_tasks, n_slots, 2 * model.base.memory_size)  # type: ignore
        self.memory = memory.to(self.device)
        self._parameters = model.task_parameters(torch.arange(n_tasks, device=self.device))
        self._index = torch.arange(n_slots, device=self.device).expand(n_tasks, 1, n_slots)

    def __call__(self, seen: Observation, begins: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return logits (T, N, A) and values (T, N) of one observation each, and remember it.

        Args:
            seen: What each agent sees.
            begins: Which observations are the first of an episode, shape (T, N).
        """
        missions = torch.from_numpy(seen.mission)
        logits, values, self.memory = self.model.run(
            self._parameters,
            torch.from_numpy(seen.image).to(self.device)[:, None],
            without_padding(missions).to(self.device),
            self._index,
            self.memory,
            torch.from_numpy(begins).to(self.device)[:, None],
        )
        return logits[:, 0], values[:, 0]


class Player:
    """A policy in its environments: it remembers, acts and counts episodes.

    Args:
        model: The policies of all tasks; task t plays level t.
        environments: T levels × N slots.
        log: Counts episodes; its levels are those of the environments.
        seed: Of the actions.
    """

    def __init__(
        self, model: ComposedModel, environments: VectorEnv, log: EpisodeLog, *, seed: int
    ) -> None:
        self.model = model
        self.environments = environments
        self.log = log
        self.generator = torch.Generator().manual_seed(seed)
        self.seen: Observation | None = None
        shape = (len(environments.levels), environments.n_slots)
        self.memory: Tensor = torch.zeros(*shape, 2 * model.base.memory_size)  # type: ignore[operator]
        self.begins = np.ones(shape, dtype=bool)
        self.lengths = np.zeros(shape, dtype=np.int64)

    @torch.no_grad()
    def play(self, settings: RolloutSettings) -> Sequences:
        """Play a rollout and judge its actions.

        Args:
            settings: How many steps, and how to judge.
        """
        training = self.model.training
        self.model.eval()
        if self.seen is None:
            self.seen = self.environments.reset()
        n_tasks, n_slots = self.begins.shape
        acting = Acting(self.model, n_tasks, n_slots, self.memory)
        steps, bootstraps = [], []
        for _ in range(settings.n_steps):
            step, values_at_end = self._step(acting, settings)
            steps.append(step)
            bootstraps.append(values_at_end)
        self.memory = acting.memory
        assert self.seen is not None
        _, next_values = acting(self.seen, self.begins)
        rollout = stack_steps(steps, settings.recurrence)
        advantages = generalised_advantages(
            rollout.rewards,
            rollout.values,
            rollout.ends,
            next_values,
            discount=settings.discount,
            decay=settings.gae_lambda,
            bootstraps=torch.stack(bootstraps),
        )
        returns = advantages + rollout.values
        advantages = normalise_advantages(advantages, settings.normalise_advantages)
        self.model.train(training)
        return cut_sequences(rollout, advantages, returns)

    def _step(self, acting: Acting, settings: RolloutSettings) -> tuple[Step, Tensor]:
        seen, begins, memory, device = self.seen, self.begins, acting.memory, acting.device
        assert seen is not None
        logits, values = acting(seen, begins)
        actions = sample_actions(logits, self.generator)
        change = self.environments.step(actions.cpu().numpy())
        ends = change.terminated | change.truncated
        self.lengths += 1
        self.log.update(change.terminated, change.truncated, change.reward, self.lengths)
        self.lengths[ends] = 0
        bootstraps = torch.zeros_like(values)
        if settings.bootstrap_truncated and change.final is not None:
            bootstraps = _values_at_end(acting, change)
        step = Step(
            images=torch.from_numpy(seen.image).to(device),
            missions=torch.from_numpy(seen.mission).to(device),
            begins=torch.from_numpy(begins).to(device),
            memory=memory,
            actions=actions,
            log_probs=action_log_probs(logits, actions),
            values=values,
            rewards=torch.from_numpy(change.reward).to(device) * settings.reward_scale,
            ends=torch.from_numpy(ends).to(device),
        )
        self.seen, self.begins = change.observation, ends
        return step, bootstraps

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly, or from new episodes where that is all.

        Environments that cannot be saved begin new episodes in a resumed run.
        """
        state: dict[str, Any] = {"log": self.log.state_dict()}
        state["generator"] = self.generator.get_state()
        if self.seen is None:  # they have not begun
            return state
        try:
            state["environments"] = self.environments.state()
        except NotImplementedError:
            return state
        state["memory"] = self.memory.cpu()
        state["begins"], state["lengths"] = self.begins.tolist(), self.lengths.tolist()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.log.load_state_dict(state["log"])
        self.generator.set_state(state["generator"])
        if "environments" in state:
            self.seen = self.environments.load_state(state["environments"])
            self.memory = state["memory"]
            self.begins = np.array(state["begins"], dtype=bool)
            self.lengths = np.array(state["lengths"], dtype=np.int64)


def _values_at_end(acting: Acting, change: Transition) -> Tensor:
    """Return the value of the last observation of truncated episodes, 0 elsewhere."""
    assert change.final is not None
    places, memory = change.truncated, acting.memory
    image, mission = change.observation.image.copy(), change.observation.mission.copy()
    image[places], mission[places] = change.final.image, change.final.mission
    last = Observation(image, change.observation.direction, mission)
    _, values = acting(last, np.zeros_like(places))
    acting.memory = memory  # they only looked
    return values * torch.from_numpy(places).to(values)


def sample_actions(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an action from each distribution, with random numbers made on the CPU.

    Args:
        logits: Shape (…, A).
        generator: Of the CPU, so that every device draws alike.
    """
    noise = torch.rand(logits.shape, generator=generator, dtype=torch.float64)
    gumbel = -torch.log(-torch.log(noise.clamp(1e-12, 1 - 1e-12)))
    return (logits.double() + gumbel.to(logits.device)).argmax(-1)


class RolloutLoader:
    """Hands out the minibatches of one rollout per epoch, and plays the rollout when it begins.

    Args:
        player: Plays.
        settings: How.
        seed: Of the minibatches.

    Attributes:
        before_batch: As in `mttl.data.loader.ResumableLoader`.
    """

    def __init__(self, player: Player, settings: RolloutSettings, *, seed: int) -> None:
        self.player = player
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.before_batch: Callable[[], None] | None = None
        self._sequences: Sequences | None = None
        self._order = self.generator.get_state()  # at the beginning of the current rollout
        self._next = 0

    def __len__(self) -> int:
        return self.settings.n_epochs * self.settings.n_minibatches

    def __iter__(self) -> Iterator[Sequences]:
        if self.before_batch is not None:
            self.before_batch()
        if self._sequences is None:
            self._sequences, self._next = self.player.play(self.settings), 0
            self._order = self.generator.get_state()
        self.generator.set_state(self._order)
        batches = minibatches(
            self._sequences,
            n_minibatches=self.settings.n_minibatches,
            n_epochs=self.settings.n_epochs,
            generator=self.generator,
        )
        for number, batch in enumerate(batches):
            if number < self._next:
                continue
            if self.before_batch is not None:
                self.before_batch()
            self._next = number + 1
            if self._next == len(self):
                # With the last batch the position is the next rollout, which is not played yet.
                self._sequences = None
            yield batch
        if self.before_batch is not None:
            self.before_batch()

    def state(self) -> dict[str, Any]:
        """Return what is needed to hand out the next minibatch and all later ones."""
        # After the last minibatch the generator stands where the next rollout begins.
        order = self.generator.get_state() if self._sequences is None else self._order
        state = {"player": self.player.state_dict(), "next": self._next, "order": order}
        if self._sequences is not None:
            state["sequences"] = {
                name: value.cpu() for name, value in vars(self._sequences).items()
            }
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a saved position; the next `iter` begins there."""
        self.player.load_state_dict(state["player"])
        self.generator.set_state(state["order"])
        self._order, self._next, self._sequences = state["order"], state["next"], None
        if "sequences" in state:
            device = self.player.model.device
            tensors = {name: value.to(device) for name, value in state["sequences"].items()}
            self._sequences = Sequences(**tensors)


class RolloutDataModule(pl.LightningDataModule):
    """Rollouts as Lightning's training data; its state is that of the loader.

    The loader itself offers Lightning no state: it would be restored too late, when the loader has
    been asked for its length.

    Args:
        loader: Plays and hands out.
    """

    def __init__(self, loader: RolloutLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> RolloutLoader:
        """Return the loader."""
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on exactly."""
        return self.loader.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there.

        A checkpoint holds the state of the first process; the others keep its counts and begin new
        episodes, since the same ones would be played by all.
        """
        if self.trainer is not None and self.trainer.global_rank > 0:
            self.loader.player.log.load_state_dict(state_dict["player"]["log"])
        else:
            self.loader.load_state(state_dict)

    def transfer_batch_to_device(
        self, batch: Sequences, device: torch.device, dataloader_idx: int
    ) -> Sequences:
        """Return the batch: rollouts are made where the policy is."""
        return batch
