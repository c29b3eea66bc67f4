"""Agents, and rollouts as training data: one rollout per epoch, in minibatches.

The state of the loader has all that a resumed run needs to continue exactly: the environments, the
policy's memory and the current rollout.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from envs.interface import Observation, VectorEnv
from mttl.babyai.demonstration_loader import DemonstrationLoader
from mttl.babyai.rl.learning_curve import EpisodeLog
from mttl.babyai.rl.losses import action_log_probs, generalised_advantages
from mttl.babyai.rl.sequences import (
    EpisodeSequences,
    Rollout,
    cut_sequences,
    minibatches,
    stack_steps,
    without_padding,
)
from mttl.config.babyai_schema import Ppo
from mttl.io.errors import CheckpointError, raised_as
from mttl.runtime.processes import gathered, rank
from mttl.skills.composed.composed_model import ComposedModel


class Agent:
    """The policies of some tasks, acting in parallel, with parameters that are mixed once.

    The model must be in evaluation mode, since routing noise would change the policy between
    rollout and training.

    Attributes:
        memory: Memory of the policies, shape (T, N, 2 × memory size).
    """

    def __init__(
        self, model: ComposedModel, tasks: Sequence[int], n_slots: int, memory: Tensor | None = None
    ) -> None:
        self.model = model
        self.device = model.device
        if memory is None:
            memory = torch.zeros(len(tasks), n_slots, 2 * model.base.memory_size)  # type: ignore
        self.memory = memory.to(self.device)
        self._parameters = model.task_parameters(torch.tensor(tasks, device=self.device))
        self._index = torch.arange(n_slots, device=self.device).expand(len(tasks), 1, n_slots)

    def __call__(self, seen: Observation, begins: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return logits (T, N, A) and values (T, N) of one observation, and update the memory."""
        check_words(seen.mission, self.model)
        missions = torch.from_numpy(seen.mission)
        logits, values, self.memory = self.model.run(
            self._parameters,
            torch.from_numpy(seen.image).to(self.device)[:, None],
            without_padding(missions).to(self.device),
            self._index,
            self.memory,
            torch.from_numpy(begins).to(self.device)[:, None],
        )
        # Half precision is too coarse for ratios of probabilities.
        return logits[:, 0].float(), values[:, 0].float()


def check_words(missions: np.ndarray, model: ComposedModel) -> None:
    """Raise a `CheckpointError` if policies have no vectors for the words of missions."""
    if missions.max() >= len(model.base.get_parameter("words.weight")):
        raise CheckpointError(
            "the policies were trained with BabyAI's words only, and a mission has others; train a "
            "run with such a level, or adapt with adapt.mode=from_scratch"
        )


def sample_actions(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return an action sampled from each distribution, with random numbers of the CPU."""
    noise = torch.rand(logits.shape, generator=generator, dtype=torch.float64)
    gumbel = -torch.log(-torch.log(noise.clamp(1e-12, 1 - 1e-12)))
    return (logits.double() + gumbel.to(logits.device)).argmax(-1)


class RolloutLoader:
    """A resumable loader that plays one rollout per epoch and yields its minibatches.

    ``arithmetic`` returns the precision context of training, for equal policies.

    Attributes:
        before_batch: Hook before every batch, as in `mttl.data.loader.ResumableLoader`.
    """

    def __init__(
        self,
        model: ComposedModel,
        environments: VectorEnv,
        log: EpisodeLog,
        settings: Ppo,
        *,
        seed: int,
        arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model, self.environments, self.log = model, environments, log
        self.settings, self.arithmetic = settings, arithmetic
        self.before_batch: Callable[[], object] = lambda: None
        self.seen: Observation | None = None
        shape = (len(environments.levels), environments.n_slots)
        self.memory: Tensor = torch.zeros(*shape, 2 * model.base.memory_size)  # type: ignore[operator]
        self.begins = np.ones(shape, dtype=bool)
        self.lengths = np.zeros(shape, dtype=np.int64)
        # For actions, and for the order of sequences.
        self.generator = torch.Generator().manual_seed(seed)
        self.shuffling = torch.Generator().manual_seed(seed)
        self._sequences: EpisodeSequences | None = None
        self._order = self.shuffling.get_state()  # at the start of the current rollout
        self._next = 0

    def __len__(self) -> int:
        return self.settings.n_epochs * self.settings.n_minibatches

    def __iter__(self) -> Iterator[EpisodeSequences]:
        self.before_batch()
        if self._sequences is None:
            with self.arithmetic():
                self._sequences, self._next = self.play(), 0
            self._order = self.shuffling.get_state()
        self.shuffling.set_state(self._order)
        numbers = self.settings.model_dump(include={"n_minibatches", "n_epochs"})
        batches = minibatches(self._sequences, generator=self.shuffling, **numbers)
        for number, batch in islice(enumerate(batches), self._next, None):
            self.before_batch()
            self._next = number + 1
            if self._next == len(self):
                # After the last batch the position is the next rollout.
                self._sequences = None
            yield batch
        self.before_batch()

    @torch.no_grad()
    def play(self) -> EpisodeSequences:
        """Return the sequences of a new rollout, with advantages and returns."""
        training, settings = self.model.training, self.settings
        self.model.eval()
        if self.seen is None:
            self.seen = self.environments.reset()
        n_tasks, n_slots = self.begins.shape
        agent = Agent(self.model, range(n_tasks), n_slots, self.memory)
        steps = [self._step(agent, self.seen) for _ in range(settings.n_steps)]
        self.memory = agent.memory
        _, next_values = agent(self.seen, self.begins)
        rollout = stack_steps(steps, settings.recurrence)
        advantages = generalised_advantages(
            *(rollout.rewards, rollout.values, rollout.ends, next_values),
            discount=settings.discount,
            decay=settings.gae_lambda,
        )
        self.model.train(training)
        return cut_sequences(rollout, advantages, advantages + rollout.values)

    def _step(self, agent: Agent, seen: Observation) -> Rollout:
        begins, memory, device = self.begins, agent.memory, agent.device
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
            rewards=torch.from_numpy(change.reward).to(device) * self.settings.reward_scale,
            ends=torch.from_numpy(ends).to(device),
        )

    def state(self) -> dict[str, Any]:
        """Return the state for the next and all later minibatches.

        Environments that have not started, or cannot be saved, start new episodes in a resumed run.
        """
        state: dict[str, Any] = {"log": self.log.state_dict(), "next": self._next}
        state["generator"] = self.generator.get_state()
        # After the last minibatch, the state of the generator is that of the next rollout.
        state["order"] = self.shuffling.get_state() if self._sequences is None else self._order
        if self._sequences is not None:
            on_cpu = move_data_to_device(self._sequences, torch.device("cpu"))
            state["sequences"] = on_cpu._asdict()
        with suppress(NotImplementedError):
            if self.seen is not None:
                state["environments"] = self.environments.state()
                state["memory"] = self.memory.cpu()
                state["begins"], state["lengths"] = self.begins.tolist(), self.lengths.tolist()
        return state

    def load_state(self, state: dict[str, Any], of_other: bool = False) -> None:
        """Set the position of the next `iter`.

        For ``of_other`` processes or another number of environments, only the counts are restored.
        """
        self.log.load_state_dict(state["log"])
        if of_other or np.shape(state.get("begins", self.begins)) != self.begins.shape:
            return
        self.generator.set_state(state["generator"])
        self.shuffling.set_state(state["order"])
        self._order, self._next, self._sequences = state["order"], state["next"], None
        if "sequences" in state:
            saved = EpisodeSequences(**state["sequences"])
            self._sequences = move_data_to_device(saved, self.model.device)
        if "environments" in state:
            with raised_as(CheckpointError, "the checkpoint cannot be resumed from", ValueError):
                self.seen = self.environments.load_state(state["environments"])
            self.memory = state["memory"]
            self.begins = np.array(state["begins"], dtype=bool)
            self.lengths = np.array(state["lengths"], dtype=np.int64)


class PolicyData(pl.LightningDataModule):
    """A loader as Lightning's data module, with the loader's state.

    Lightning would restore a state of the loader itself only after reading its length.
    """

    def __init__(self, loader: DemonstrationLoader | RolloutLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> DemonstrationLoader | RolloutLoader:
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return {"processes": gathered(self.loader.state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this process's state; additional processes get the counts of the first."""
        states, own = state_dict["processes"], rank()
        of_other = own >= len(states)
        self.loader.load_state(states[0 if of_other else own], of_other)
