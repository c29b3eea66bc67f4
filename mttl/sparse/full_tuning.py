"""The first phase of lottery-ticket fine-tuning: whole tensors are trained and entries scored."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mttl.skills.weights.supports import select_support
from mttl.sparse.lottery_settings import Criterion, LotterySettings
from mttl.sparse.scores import FisherScores, MovementScores, magnitude_of_change


class FullTuning:
    """Trains whole tensors to find out which of their entries matter, and puts them back.

    Args:
        parameters: The tensors that may be in the support, at their start.
        criterion: By which entries are chosen. For ``"fisher"`` gradients are read alone, one
            example at a time (`add_example`); nothing is trained then.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], criterion: Criterion) -> None:
        self._parameters = dict(parameters)
        for value in self._parameters.values():
            value.requires_grad_(True)
        self._starts = {name: x.detach().clone() for name, x in self._parameters.items()}
        self._movement = MovementScores(self._parameters) if criterion == "movement" else None
        self._fisher = FisherScores(self._parameters) if criterion == "fisher" else None

    @property
    def only_reads(self) -> bool:
        """Whether gradients are read, and nothing is trained."""
        return self._fisher is not None

    def parameters(self) -> list[nn.Parameter]:
        """Return what an optimizer trains."""
        return list(self._parameters.values())

    def scores(self) -> Mapping[str, Tensor]:
        """Return the score of every entry so far."""
        if self._fisher is not None:
            return self._fisher.scores
        if self._movement is not None:
            return self._movement.scores
        return magnitude_of_change(self._starts, self._parameters)

    @torch.no_grad()
    def add_l1(self, coefficient: float) -> None:
        """Add the gradient of ``coefficient`` · ‖θ − θ0‖₁."""
        for name, value in self._parameters.items():
            if value.grad is not None:
                value.grad.add_((value - self._starts[name]).sign(), alpha=coefficient)

    def before_step(self, lr: float) -> None:
        """Score the gradients of a step of training that is about to be taken."""
        if self._movement is not None:
            self._movement.add(lr)

    def add_example(self) -> None:
        """Score the gradients of one example, and drop them."""
        if self._fisher is not None:
            self._fisher.add()
        for value in self._parameters.values():
            value.grad = None

    @torch.no_grad()
    def rewind(self, settings: LotterySettings) -> dict[str, Tensor]:
        """Choose the support, and put the tensors back to their start.

        Args:
            settings: How many entries, and what is chosen as a whole.

        Returns:
            Sorted int64 places by name.
        """
        support = select_support(
            self.scores(),
            settings.density,
            scope=settings.scope,
            structure=settings.structure,
            block=settings.block,
        )
        for name, value in self._parameters.items():
            value.copy_(self._starts[name])
        return support

    def state_dict(self) -> dict[str, Any]:
        """Return values and scores."""
        kept = self._fisher or self._movement
        return {
            "values": {name: value.detach() for name, value in self._parameters.items()},
            "scores": None if kept is None else kept.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; the tensors must be at their start."""
        for name, value in self._parameters.items():
            value.copy_(state["values"][name])
        kept = self._fisher or self._movement
        if kept is not None:
            kept.load_state_dict(state["scores"])
