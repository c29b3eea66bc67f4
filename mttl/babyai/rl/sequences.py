"""Rollouts, short sequences of them, and shuffled minibatches for training."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor

# Fields of a rollout that its sequences have for every frame.
_FRAMES = ("images", "begins", "actions", "log_probs", "values")


class Rollout(NamedTuple):
    """Observations, actions and rewards of one step of N environments of T tasks, or of S steps.

    Attributes:
        images: Images before the action.
        begins: Whether the observation is the first of an episode.
        memory: Memory of the policy before the observation; for S steps, only before every
            ``recurrence``-th one, where sequences start.
        ends: Whether the action ended the episode.
    """

    images: UInt8[Tensor, "*S T N 7 7 3"]
    missions: UInt8[Tensor, "*S T N M"]
    begins: Bool[Tensor, "*S T N"]
    memory: Float[Tensor, "*C T N D"]
    actions: Int[Tensor, "*S T N"]
    log_probs: Float[Tensor, "*S T N"]
    values: Float[Tensor, "*S T N"]
    rewards: Float[Tensor, "*S T N"]
    ends: Bool[Tensor, "*S T N"]


def stack_steps(steps: Sequence[Rollout], recurrence: int) -> Rollout:
    """Return the rollout of S single steps, with memories before every ``recurrence``-th one."""
    columns = zip(Rollout._fields, zip(*steps, strict=True), strict=True)
    every = {"memory": recurrence}
    return Rollout(**{name: torch.stack(own[:: every.get(name, 1)]) for name, own in columns})


class EpisodeSequences(NamedTuple):
    """N sequences of S steps for each of T tasks; the task axis is first, for `vmap` over tasks.

    Other fields are those of a `Rollout`.

    Attributes:
        missions: Distinct missions of the rollout, without common padding.
        mission_index: Index of each frame's mission.
        memory: Memory of the policy before the first step of each sequence.
        returns: Targets of the critic.
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
        """The inputs of a policy, in the order of its arguments."""
        return self.images, self.missions, self.mission_index, self.memory, self.begins

    def select(self, chosen: Int64[Tensor, "T n"]) -> "EpisodeSequences":
        """Return a copy of some sequences of every task."""
        n_tasks, n_steps, n_sequences = self.actions.shape
        tasks = torch.arange(n_tasks, device=chosen.device)[:, None]
        steps = torch.arange(n_steps, device=chosen.device)[:, None]
        frames = ((tasks * n_steps)[..., None] + steps) * n_sequences + chosen[:, None]

        def pick(field: Tensor) -> Tensor:
            # This copies whole frames; indexing with `frames` would copy single numbers.
            return field.flatten(0, 2).index_select(0, frames.flatten()).unflatten(0, frames.shape)

        first = (tasks * n_sequences + chosen).flatten()
        memory = self.memory.flatten(0, 1).index_select(0, first).unflatten(0, chosen.shape)
        whole = {"missions": self.missions, "memory": memory}
        fields = self._asdict().items()
        return self._replace(**whole, **{k: pick(x) for k, x in fields if k not in whole})


def cut_sequences(
    rollout: Rollout, advantages: Float[Tensor, "S T N"], returns: Float[Tensor, "S T N"]
) -> EpisodeSequences:
    """Return all sequences of a rollout, in order: C per slot, ``recurrence`` steps each.

    Sequence ``c * N + n`` of a task has the steps of slot n from ``c * recurrence`` on, and the
    memory before the first of them.
    """
    missions, mission_index = distinct_missions(rollout.missions)
    recurrence = len(rollout.actions) // len(rollout.memory)

    def cut(field: Tensor) -> Tensor:
        pieces = field.unflatten(0, (-1, recurrence))  # (C, recurrence, T, N, …)
        return pieces.movedim(2, 0).transpose(1, 2).flatten(2, 3)

    return EpisodeSequences(
        missions=missions,
        mission_index=cut(mission_index),
        memory=rollout.memory.movedim(1, 0).flatten(1, 2),
        advantages=cut(advantages),
        returns=cut(returns),
        **{name: cut(getattr(rollout, name)) for name in _FRAMES},
    )


def minibatches(
    sequences: EpisodeSequences, *, n_minibatches: int, n_epochs: int, generator: torch.Generator
) -> Iterator[EpisodeSequences]:
    """Yield ``n_epochs * n_minibatches`` minibatches; each epoch uses every frame once.

    Each epoch shuffles the sequences of every task separately, so that a minibatch has equal
    numbers of each task. ``n_minibatches`` must divide the number of a task's sequences; the
    generator must be on the CPU.
    """
    n_tasks, _, n_sequences = sequences.actions.shape
    for _ in range(n_epochs):
        order = torch.rand(n_tasks, n_sequences, generator=generator).argsort(dim=1)
        for chosen in order.to(sequences.actions.device).chunk(n_minibatches, dim=1):
            yield sequences.select(chosen)


def distinct_missions(
    missions: UInt8[Tensor, "S T N M"],
) -> tuple[UInt8[Tensor, "T E L"], Int64[Tensor, "S T N"]]:
    """Return the distinct missions of every task, and the index of each frame's mission.

    ``distinct[t, index[s, t, n]]`` is ``missions[s, t, n]`` without common padding. E is the
    largest number of distinct missions of a task (others repeat theirs), and L, at least 1, the
    length of the longest.
    """
    tokens = without_padding(missions.cpu()).numpy()
    n_steps, n_tasks, n_slots, length = tokens.shape
    found, indices = [], []
    for task in range(n_tasks):
        rows = np.ascontiguousarray(tokens[:, task]).reshape(-1, length)
        # Sorting items of `length` bytes is ten times as fast as sorting along an axis.
        distinct, index = np.unique(rows.view(f"V{length}")[:, 0], return_inverse=True)
        found.append(distinct.view(np.uint8).reshape(-1, length))
        indices.append(index.reshape(n_steps, n_slots))
    most = max(map(len, found))
    padded = np.stack([rows[np.arange(most) % len(rows)] for rows in found])
    index = np.stack(indices, axis=1)
    return torch.from_numpy(padded).to(missions.device), torch.from_numpy(index).to(missions.device)


def without_padding(missions: UInt8[Tensor, "*rows M"]) -> UInt8[Tensor, "*rows L"]:
    """Return missions without columns of padding, with at least one column."""
    used = int((missions != 0).flatten(0, -2).any(0).sum())
    return missions[..., : max(1, used)]
