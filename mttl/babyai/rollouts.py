"""Rollouts as training data: played when an epoch begins, handed out in minibatches.

One epoch of Lightning is one rollout. The loader keeps what a resumed run needs to go on exactly:
the environments, the policy's memory, and the rollout that is being learned from.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from envs.interface import Observation, VectorEnv
from mttl.babyai.agent import Agent, sample_actions
from mttl.babyai.rl.episode_log import EpisodeLog
from mttl.babyai.rl.gae import generalised_advantages
from mttl.babyai.rl.ppo import action_log_probs
from mttl.babyai.rl.sequences import (
    EpisodeSequences,
    Rollout,
    cut_sequences,
    minibatches,
    stack_steps,
)
from mttl.config.babyai_schema import Ppo
from mttl.io.errors import CheckpointError
from mttl.runtime.processes import gathered, rank
from mttl.skills.composed.composed_model import ComposedModel


class RolloutCollector:
    """A policy in its environments: it remembers, acts and counts episodes."""

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
    def play(self, settings: Ppo) -> EpisodeSequences:
        """Play a rollout and judge its actions."""
        training = self.model.training
        self.model.eval()
        if self.seen is None:
            self.seen = self.environments.reset()
        n_tasks, n_slots = self.begins.shape
        agent = Agent(self.model, n_tasks, n_slots, self.memory)
        steps = [self._step(agent, settings) for _ in range(settings.n_steps)]
        self.memory = agent.memory
        assert self.seen is not None
        _, next_values = agent(self.seen, self.begins)
        rollout = stack_steps(steps, settings.recurrence)
        advantages = generalised_advantages(
            rollout.rewards,
            rollout.values,
            rollout.ends,
            next_values,
            discount=settings.discount,
            decay=settings.gae_lambda,
        )
        self.model.train(training)
        return cut_sequences(rollout, advantages, advantages + rollout.values)

    def _step(self, agent: Agent, settings: Ppo) -> Rollout:
        seen, begins, memory, device = self.seen, self.begins, agent.memory, agent.device
        assert seen is not None
        logits, values = agent(seen, begins)
        actions = sample_actions(logits, self.generator)
        change = self.environments.step(actions.cpu().numpy())
        ends = change.terminated | change.truncated
        self.lengths += 1
        self.log.update(change.terminated, change.truncated, change.reward, self.lengths)
        self.lengths[ends] = 0
        self.seen, self.begins = change.observation, ends
        return Rollout(
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
        """Go on from a saved state.

        Raises:
            CheckpointError: If it is of other environments, or damaged.
        """
        self.log.load_state_dict(state["log"])
        self.generator.set_state(state["generator"])
        if "environments" in state:
            try:
                self.seen = self.environments.load_state(state["environments"])
            except ValueError as error:
                raise CheckpointError(f"the checkpoint cannot be resumed from: {error}") from error
            self.memory = state["memory"]
            self.begins = np.array(state["begins"], dtype=bool)
            self.lengths = np.array(state["lengths"], dtype=np.int64)


class RolloutLoader:
    """Hands out the minibatches of one rollout per epoch, and plays the rollout when it begins.

    Attributes:
        before_batch: As in `mttl.data.loader.ResumableLoader`.
        arithmetic: Gives the context to play in. It must be that of learning, or the policy that
            learns would be another one than the policy that played.
    """

    def __init__(self, collector: RolloutCollector, settings: Ppo, *, seed: int) -> None:
        self.collector = collector
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.before_batch: Callable[[], object] = lambda: None
        self.arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._sequences: EpisodeSequences | None = None
        self._order = self.generator.get_state()  # at the beginning of the current rollout
        self._next = 0

    def __len__(self) -> int:
        return self.settings.n_epochs * self.settings.n_minibatches

    def __iter__(self) -> Iterator[EpisodeSequences]:
        self.before_batch()
        if self._sequences is None:
            with self.arithmetic():
                self._sequences, self._next = self.collector.play(self.settings), 0
            self._order = self.generator.get_state()
        self.generator.set_state(self._order)
        batches = minibatches(
            self._sequences,
            n_minibatches=self.settings.n_minibatches,
            n_epochs=self.settings.n_epochs,
            generator=self.generator,
        )
        for number, batch in islice(enumerate(batches), self._next, None):
            self.before_batch()
            self._next = number + 1
            if self._next == len(self):
                # With the last batch the position is the next rollout, which is not played yet.
                self._sequences = None
            yield batch
        self.before_batch()

    def state(self) -> dict[str, Any]:
        """Return what is needed to hand out the next minibatch and all later ones."""
        # After the last minibatch the generator stands where the next rollout begins.
        order = self.generator.get_state() if self._sequences is None else self._order
        state = {"player": self.collector.state_dict(), "next": self._next, "order": order}
        if self._sequences is not None:
            state["sequences"] = vars(self._sequences.to("cpu"))
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a saved position; the next `iter` begins there."""
        self.collector.load_state_dict(state["player"])
        self.generator.set_state(state["order"])
        self._order, self._next, self._sequences = state["order"], state["next"], None
        if "sequences" in state:
            device = self.collector.model.device
            self._sequences = EpisodeSequences(**state["sequences"]).to(device)


class RolloutDataModule(pl.LightningDataModule):
    """Rollouts as Lightning's training data; its state is that of the loader.

    The loader itself offers Lightning no state: it would be restored too late, when the loader has
    been asked for its length.
    """

    def __init__(self, loader: RolloutLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> RolloutLoader:
        """Return the loader, which plays in the trainer's precision."""
        if self.trainer is not None:
            self.loader.arithmetic = self.trainer.precision_plugin.forward_context
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on exactly: of several processes, a state of each."""
        states = gathered(self.loader.state())
        return {"processes": states} if len(states) > 1 else states[0]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there.

        Where there were fewer processes, those that had no state take the counts of the first one
        and begin new episodes, since the same ones would be played by both.
        """
        states = state_dict.get("processes", [state_dict])
        if rank() < len(states):
            self.loader.load_state(states[rank()])
        else:
            self.loader.collector.log.load_state_dict(states[0]["player"]["log"])
