"""The policies of all tasks, acting side by side, step by step."""

import numpy as np
import torch
from torch import Tensor

from envs.interface import Observation
from mttl.babyai.rl.missions import without_padding
from mttl.skills.composed.composed_model import ComposedModel


class Agent:
    """The policies of all tasks, acting side by side: their parameters are mixed once.

    Make a new agent when weights have changed. The model is in evaluation mode: noise in the
    routing would change the policy between rollout and learning.

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
        """Return logits (T, N, A) and values (T, N) of one observation each, and remember it."""
        missions = torch.from_numpy(seen.mission)
        logits, values, self.memory = self.model.run(
            self._parameters,
            torch.from_numpy(seen.image).to(self.device)[:, None],
            without_padding(missions).to(self.device),
            self._index,
            self.memory,
            torch.from_numpy(begins).to(self.device)[:, None],
        )
        # In mixed precision they come in half of it, too coarse for ratios of probabilities.
        return logits[:, 0].float(), values[:, 0].float()


def sample_actions(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an action from each distribution, with random numbers made on the CPU."""
    noise = torch.rand(logits.shape, generator=generator, dtype=torch.float64)
    gumbel = -torch.log(-torch.log(noise.clamp(1e-12, 1 - 1e-12)))
    return (logits.double() + gumbel.to(logits.device)).argmax(-1)
