"""What a policy saw, did and got in S steps of N environments for each of T tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One step of all environments.

    Attributes:
        images: What is seen before the action.
        missions: Tokens of what is asked for.
        begins: The observation is the first of an episode.
        memory: Of the policy, before it sees the observation.
        actions: What it did.
        log_probs: Logarithm of the probability of that.
        values: What the critic expected.
        rewards: What the action brought.
        ends: The action ended the episode.
    """

    images: UInt8[Tensor, "T N *image"]
    missions: UInt8[Tensor, "T N M"]
    begins: Bool[Tensor, "T N"]
    memory: Float[Tensor, "T N D"]
    actions: Int[Tensor, "T N"]
    log_probs: Float[Tensor, "T N"]
    values: Float[Tensor, "T N"]
    rewards: Float[Tensor, "T N"]
    ends: Bool[Tensor, "T N"]


@dataclass(frozen=True)
class Rollout:
    """S steps of all environments, field by field as in `Step`.

    Of the memory only what stood before every ``recurrence``-th step is kept: sequences that are
    learned from begin nowhere else. It has C = S / recurrence entries.
    """

    images: UInt8[Tensor, "S T N *image"]
    missions: UInt8[Tensor, "S T N M"]
    begins: Bool[Tensor, "S T N"]
    memory: Float[Tensor, "C T N D"]
    actions: Int[Tensor, "S T N"]
    log_probs: Float[Tensor, "S T N"]
    values: Float[Tensor, "S T N"]
    rewards: Float[Tensor, "S T N"]
    ends: Bool[Tensor, "S T N"]

    @property
    def recurrence(self) -> int:
        """The number of steps between two memories: the length of a sequence."""
        return len(self.actions) // len(self.memory)


def stack_steps(steps: Sequence[Step], recurrence: int) -> Rollout:
    """Return the rollout of some steps in order.

    Args:
        steps: All steps, S of them.
        recurrence: Steps of a sequence, through which gradients pass back in time; divides S.
    """
    stacked = {}
    for field in fields(Step):
        kept = steps[::recurrence] if field.name == "memory" else steps
        stacked[field.name] = torch.stack([getattr(step, field.name) for step in kept])
    return Rollout(**stacked)
