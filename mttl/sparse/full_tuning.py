"""The first phase of lottery-ticket fine-tuning: whole tensors are trained and entries scored."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mttl.skills.weights.supports import select_support
from mttl.sparse.lottery_settings import Criterion, LotterySettings
from mttl.sparse.scores import FisherScores, MovementScores, magnitude_of_change


class FullTuning:
    """Trains whole tensors to score their entries, and restores them.

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
        self._criterion = criterion
        self._rewound = self._starts
        self._support: dict[str, Tensor] | None = None  # all entries
        self._kept: dict[str, Tensor] = {}
        self._begin_scores()

    def _begin_scores(self) -> None:
        criterion = self._criterion
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
        """Return the score of every entry so far; outside the support nothing may be chosen."""
        scores = self._all_scores()
        return {
            name: score if self._support is None else score.where(self._inside(name), -torch.inf)
            for name, score in scores.items()
        }

    def _all_scores(self) -> Mapping[str, Tensor]:
        if self._criterion == "magnitude":
            return {name: value.detach().abs() for name, value in self._parameters.items()}
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

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Drop the gradients of what an earlier turn left out."""
        for name, value in self._parameters.items():
            if self._support is not None and value.grad is not None:
                value.grad.mul_(self._inside(name))

    def before_step(self, lr: float) -> None:
        """Score the gradients of a step of training that is about to be taken."""
        if self._movement is not None:
            self._movement.add(lr)

    @torch.no_grad()
    def apply_mask(self, settings: LotterySettings, step: int) -> None:
        """Set all but the best entries to 0 for a pass of gradual pruning; `unmask` ends it."""
        self._kept = {name: x.detach().clone() for name, x in self._parameters.items()}
        self._support = self._best(settings, settings.density_at(step))
        for name, value in self._parameters.items():
            value.mul_(self._inside(name))

    @torch.no_grad()
    def unmask(self, lr: float) -> None:
        """Undo `apply_mask`, score all gradients, and drop those outside the mask."""
        for name, value in self._parameters.items():
            value.copy_(self._kept[name])
        self.before_step(lr)
        self.mask_gradients()
        self._support, self._kept = None, {}

    def add_example(self) -> None:
        """Score the gradients of one example, and drop them."""
        if self._fisher is not None:
            self._fisher.add()
        for value in self._parameters.values():
            value.grad = None

    @torch.no_grad()
    def mark(self) -> None:
        """Let `rewind` put entries back to what they are now."""
        self._rewound = {name: x.detach().clone() for name, x in self._parameters.items()}

    @torch.no_grad()
    def rewind(self, settings: LotterySettings, turn: int = 1) -> dict[str, Tensor]:
        """Narrow the support, and put the tensors back."""
        if settings.schedule == "cubic":
            self.mark()
        self._support = support = self._best(settings, settings.density ** (turn / settings.rounds))
        for name, value in self._parameters.items():
            outside = 0 if settings.form == "masked" else self._starts[name]
            value.copy_(torch.where(self._inside(name), self._rewound[name], outside))
        self._begin_scores()
        return support

    def _best(self, settings: LotterySettings, density: float) -> dict[str, Tensor]:
        return select_support(
            self.scores(),
            density,
            scope=settings.scope,
            structure=settings.structure,
            block=settings.block,
        )

    def _inside(self, name: str) -> Tensor:
        """Return which entries of a tensor are in the support."""
        assert self._support is not None
        value = self._parameters[name]
        inside = torch.zeros(value.numel(), dtype=torch.bool, device=value.device)
        if name in self._support:
            inside[self._support[name]] = True
        return inside.view(value.shape)

    def state_dict(self) -> dict[str, Any]:
        """Return values and scores."""
        kept = self._fisher or self._movement
        return {
            "values": {name: value.detach() for name, value in self._parameters.items()},
            "scores": None if kept is None else kept.state_dict(),
            "rewound": None if self._rewound is self._starts else self._rewound,
            "narrowed": self._support,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; the tensors must be at their start."""
        for name, value in self._parameters.items():
            value.copy_(state["values"][name])
        if state["rewound"] is not None:
            self._rewound = {
                name: rewound.to(self._parameters[name].device)
                for name, rewound in state["rewound"].items()
            }
        self._support = state["narrowed"]
        kept = self._fisher or self._movement
        if kept is not None:
            kept.load_state_dict(state["scores"])
