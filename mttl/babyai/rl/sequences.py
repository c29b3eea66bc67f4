"""A rollout cut into short sequences, and the shuffled minibatches that are learned from."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor

from mttl.babyai.rl.missions import distinct_missions
from mttl.babyai.rl.rollout import Rollout


@dataclass(frozen=True)
class EpisodeSequences:
    """N sequences of S steps for each of T tasks; the task axis is first, for `vmap` over tasks.

    Attributes:
        images: What was seen.
        missions: The distinct missions of the whole rollout, no longer than the longest.
        mission_index: Which of them each frame has.
        memory: Of the policy before the first step of each sequence.
        begins: The observation is the first of an episode.
        actions: What was done.
        log_probs: Logarithm of its probability then.
        values: What the critic expected then.
        advantages: How much better than expected the action was.
        returns: What the critic should have expected.
    """

    images: UInt8[Tensor, "T S N *image"]
    missions: UInt8[Tensor, "T E M"]
    mission_index: Int64[Tensor, "T S N"]
    memory: Float[Tensor, "T N D"]
    begins: Bool[Tensor, "T S N"]
    actions: Int[Tensor, "T S N"]
    log_probs: Float[Tensor, "T S N"]
    values: Float[Tensor, "T S N"]
    advantages: Float[Tensor, "T S N"]
    returns: Float[Tensor, "T S N"]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What a policy reads, in the order of its arguments."""
        return self.images, self.missions, self.mission_index, self.memory, self.begins

    def select(self, chosen: Int64[Tensor, "T n"]) -> "EpisodeSequences":
        """Return some sequences of every task, copied.

        Args:
            chosen: Numbers of sequences, those of each task in a row.
        """
        n_tasks, n_steps, n_sequences = self.actions.shape
        tasks = torch.arange(n_tasks, device=chosen.device)[:, None]
        steps = torch.arange(n_steps, device=chosen.device)[:, None]
        frames = ((tasks * n_steps)[..., None] + steps) * n_sequences + chosen[:, None]

        def pick(field: Tensor) -> Tensor:
            # Copies frame by frame; indexing with `frames` would copy number by number.
            return field.flatten(0, 2).index_select(0, frames.flatten()).unflatten(0, frames.shape)

        first = (tasks * n_sequences + chosen).flatten()
        return EpisodeSequences(
            images=pick(self.images),
            missions=self.missions,
            mission_index=pick(self.mission_index),
            memory=self.memory.flatten(0, 1).index_select(0, first).unflatten(0, chosen.shape),
            begins=pick(self.begins),
            actions=pick(self.actions),
            log_probs=pick(self.log_probs),
            values=pick(self.values),
            advantages=pick(self.advantages),
            returns=pick(self.returns),
        )


def cut_sequences(
    rollout: Rollout, advantages: Float[Tensor, "S T N"], returns: Float[Tensor, "S T N"]
) -> EpisodeSequences:
    """Return all sequences of a rollout, in order: C per slot, ``recurrence`` steps each.

    Sequence ``c * N + n`` of a task holds the steps from ``c * recurrence`` on of slot n, and the
    memory from before the first of them.

    Args:
        rollout: What was collected.
        advantages: Those of its actions, normalised where they shall be.
        returns: What its critic should have expected.
    """
    missions, mission_index = distinct_missions(rollout.missions)

    def cut(field: Tensor) -> Tensor:
        pieces = field.unflatten(0, (-1, rollout.recurrence))  # (C, recurrence, T, N, …)
        return pieces.movedim(2, 0).transpose(1, 2).flatten(2, 3)

    return EpisodeSequences(
        images=cut(rollout.images),
        missions=missions,
        mission_index=cut(mission_index),
        memory=rollout.memory.movedim(1, 0).flatten(1, 2),
        begins=cut(rollout.begins),
        actions=cut(rollout.actions),
        log_probs=cut(rollout.log_probs),
        values=cut(rollout.values),
        advantages=cut(advantages),
        returns=cut(returns),
    )


def minibatches(
    sequences: EpisodeSequences, *, n_minibatches: int, n_epochs: int, generator: torch.Generator
) -> Iterator[EpisodeSequences]:
    """Return ``n_epochs * n_minibatches`` minibatches; each epoch uses every frame once.

    Each epoch shuffles the sequences of every task separately, so that a minibatch has equally many
    of each task.

    Args:
        sequences: Those of a whole rollout.
        n_minibatches: Minibatches of an epoch; divides the number of sequences of a task.
        n_epochs: How often to go through the rollout.
        generator: Draws the order, on the CPU.
    """
    n_tasks, _, n_sequences = sequences.actions.shape
    for _ in range(n_epochs):
        order = torch.rand(n_tasks, n_sequences, generator=generator).argsort(dim=1)
        for chosen in order.to(sequences.actions.device).chunk(n_minibatches, dim=1):
            yield sequences.select(chosen)
