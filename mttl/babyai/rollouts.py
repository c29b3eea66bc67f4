"""Rollouts as training data: played when an epoch begins, handed out in minibatches.

One epoch of Lightning is one rollout. The loader keeps what a resumed run needs to go on exactly:
the environments, the policy's memory, and the rollout that is being learned from.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytorch_lightning as pl
import torch

from mttl.babyai.collector import RolloutCollector
from mttl.babyai.rl.sequences import EpisodeSequences, minibatches
from mttl.config.babyai_schema import Ppo
from mttl.runtime.processes import gathered, rank


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
        self.before_batch: Callable[[], None] | None = None
        self.arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._sequences: EpisodeSequences | None = None
        self._order = self.generator.get_state()  # at the beginning of the current rollout
        self._next = 0

    def __len__(self) -> int:
        return self.settings.n_epochs * self.settings.n_minibatches

    def __iter__(self) -> Iterator[EpisodeSequences]:
        if self.before_batch is not None:
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
        state = {"player": self.collector.state_dict(), "next": self._next, "order": order}
        if self._sequences is not None:
            state["sequences"] = {
                name: value.cpu() for name, value in vars(self._sequences).items()
            }
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a saved position; the next `iter` begins there."""
        self.collector.load_state_dict(state["player"])
        self.generator.set_state(state["order"])
        self._order, self._next, self._sequences = state["order"], state["next"], None
        if "sequences" in state:
            device = self.collector.model.device
            tensors = {name: value.to(device) for name, value in state["sequences"].items()}
            self._sequences = EpisodeSequences(**tensors)


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

    def transfer_batch_to_device(
        self, batch: EpisodeSequences, device: torch.device, dataloader_idx: int
    ) -> EpisodeSequences:
        """Return the batch: rollouts are made where the policy is."""
        return batch
