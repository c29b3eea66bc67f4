"""A policy in its environments: what rollouts are made by."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.interface import Observation, Transition, VectorEnv
from mttl.babyai.agent import Agent, sample_actions
from mttl.babyai.rl.episode_log import EpisodeLog
from mttl.babyai.rl.gae import generalised_advantages, normalise_advantages
from mttl.babyai.rl.ppo import action_log_probs
from mttl.babyai.rl.rollout import Step, stack_steps
from mttl.babyai.rl.sequences import EpisodeSequences, cut_sequences
from mttl.config.babyai_schema import Ppo
from mttl.io.errors import CheckpointError
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
        steps, bootstraps = [], []
        for _ in range(settings.n_steps):
            step, values_at_end = self._step(agent, settings)
            steps.append(step)
            bootstraps.append(values_at_end)
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
            bootstraps=torch.stack(bootstraps),
        )
        returns = advantages + rollout.values
        advantages = normalise_advantages(advantages, settings.normalise_advantages)
        self.model.train(training)
        return cut_sequences(rollout, advantages, returns)

    def _step(self, agent: Agent, settings: Ppo) -> tuple[Step, Tensor]:
        seen, begins, memory, device = self.seen, self.begins, agent.memory, agent.device
        assert seen is not None
        logits, values = agent(seen, begins)
        actions = sample_actions(logits, self.generator)
        change = self.environments.step(actions.cpu().numpy())
        ends = change.terminated | change.truncated
        self.lengths += 1
        self.log.update(change.terminated, change.truncated, change.reward, self.lengths)
        self.lengths[ends] = 0
        bootstraps = torch.zeros_like(values)
        if settings.bootstrap_truncated and change.final is not None:
            bootstraps = _values_at_end(agent, change)
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


def _values_at_end(agent: Agent, change: Transition) -> Tensor:
    """Return the value of the last observation of truncated episodes, 0 elsewhere."""
    assert change.final is not None
    places, memory = change.truncated, agent.memory
    image, mission = change.observation.image.copy(), change.observation.mission.copy()
    image[places], mission[places] = change.final.image, change.final.mission
    last = Observation(image, change.observation.direction, mission)
    _, values = agent(last, np.zeros_like(places))
    agent.memory = memory  # they only looked
    return values * torch.from_numpy(places).to(values)
