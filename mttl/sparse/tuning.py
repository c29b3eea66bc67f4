r"""The two phases of lottery-ticket fine-tuning: whole tensors, then few entries.

The first phase scores entries; higher is better:

| criterion | score of an entry | source |
|---|---|---|
| ``change`` | :math:`\lvert\theta_1 - \theta_0\rvert` | LT-SFT |
| ``magnitude`` | :math:`\lvert\theta_1\rvert` | magnitude pruning |
| ``movement`` | :math:`-\sum_t \eta_t g_t \theta_t`: movement away from 0 | movement pruning |
| ``fisher`` | :math:`\sum g^2`, one gradient per example | FISH masks |

In the second phase, only the values at the support are parameters. As soon as a backward pass has
computed the gradient of a tensor, the entries of the support are copied and the rest is freed. So
there is one dense gradient at a time, and optimizer states have only the entries of the support.
After a step the new values are written into the tensors. For elementwise optimizers (SGD, Adam,
AdamW) this is equivalent to masked training of the whole tensors.

References:
    `mttl.sparse.lottery_ticket`. Sung, Nair and Raffel, *Training Neural Networks with Fixed Sparse
    Masks*, NeurIPS 2021, arXiv:2111.09839.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mttl.skills.weights.supports import select_support
from mttl.sparse.lottery_settings import LotterySettings
from mttl.sparse.skill_file import Originals, SparseChange, SparseSkill, digest


class FullTuning:
    """The first phase: trains whole tensors, scores their entries, and restores the tensors.

    The criterion ``"fisher"`` trains nothing, and only needs gradients of examples (`add_example`).
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: LotterySettings) -> None:
        self.entries = dict(parameters)
        for value in self.entries.values():
            value.requires_grad_(True)
        self._settings = settings
        self._starts = self._rewound = self._copies()
        self._support: dict[str, Tensor] | None = None  # all entries
        self._kept: dict[str, Tensor] = {}
        summed = settings.criterion in ("movement", "fisher")
        self._sums = {n: torch.zeros_like(x) for n, x in parameters.items() if summed}

    def _copies(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.entries.items()}

    def scores(self) -> Mapping[str, Tensor]:
        """Return the current score of every entry, minus infinity outside the support."""
        scores = {name: self._score(name, x.detach()) for name, x in self.entries.items()}
        if self._support is None:
            return scores
        return {name: score.where(self._inside(name), -torch.inf) for name, score in scores.items()}

    def _score(self, name: str, value: Tensor) -> Tensor:
        match self._settings.criterion:
            case "magnitude":
                return value.abs()
            case "movement" | "fisher":
                return self._sums[name]
        return (value - self._starts[name]).abs()

    @torch.no_grad()
    def add_l1(self, coefficient: float) -> None:
        """Add the gradient of ``coefficient`` · ‖θ − θ0‖₁."""
        for name, value in self.entries.items():
            if value.grad is not None:
                value.grad.add_((value - self._starts[name]).sign(), alpha=coefficient)

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Set gradients outside the support of earlier rounds to 0."""
        for name, value in self.entries.items():
            if self._support is not None and value.grad is not None:
                value.grad.mul_(self._inside(name))

    @torch.no_grad()
    def before_step(self, lr: float) -> None:
        """Add the gradients to the scores; call it before every optimizer step."""
        for name, value in self.entries.items():
            if self._settings.criterion == "movement" and value.grad is not None:
                self._sums[name].addcmul_(value.grad, value, value=-lr)

    @torch.no_grad()
    def add_example(self) -> None:
        """Add the gradients of one example to the scores, and clear them."""
        for name, value in self.entries.items():
            if value.grad is not None:
                self._sums[name].addcmul_(value.grad, value.grad)
            value.grad = None

    @torch.no_grad()
    def apply_mask(self, step: int) -> None:
        """Set all but the best entries to 0 for a pass of gradual pruning; `unmask` undoes it."""
        self._kept = self._copies()
        self._support = self._best(self._settings.density_at(step))
        for name, value in self.entries.items():
            value.mul_(self._inside(name))

    @torch.no_grad()
    def unmask(self, lr: float) -> None:
        """Undo `apply_mask`, add all gradients to the scores, and clear those outside the mask."""
        for name, value in self.entries.items():
            value.copy_(self._kept[name])
        self.before_step(lr)
        self.mask_gradients()
        self._support, self._kept = None, {}

    def mark(self) -> None:
        """Set the current values as those to which `rewind` returns."""
        self._rewound = self._copies()

    @torch.no_grad()
    def rewind(self, turn: int = 1) -> dict[str, Tensor]:
        """Narrow the support after a round, reset the tensors, and return the support."""
        settings = self._settings
        if settings.schedule == "cubic":
            self.mark()
        self._support = support = self._best(settings.density ** (turn / settings.rounds))
        for name, value in self.entries.items():
            outside = 0 if settings.form == "masked" else self._starts[name]
            value.copy_(torch.where(self._inside(name), self._rewound[name], outside))
        for total in self._sums.values():
            total.zero_()
        return support

    def _best(self, density: float) -> dict[str, Tensor]:
        settings = self._settings
        shape = {"structure": settings.structure, "block": settings.block}
        return select_support(self.scores(), density, scope=settings.scope, **shape)

    def _inside(self, name: str) -> Tensor:
        """Return the mask of a tensor's entries in the support."""
        assert self._support is not None
        value = self.entries[name]
        inside = torch.zeros(value.numel(), dtype=torch.bool, device=value.device)
        if name in self._support:
            inside[self._support[name]] = True
        return inside.view(value.shape)

    def state_dict(self) -> dict[str, Any]:
        """Return values, scores and support."""
        return {
            "values": {name: value.detach() for name, value in self.entries.items()},
            "sums": self._sums,
            "rewound": None if self._rewound is self._starts else self._rewound,
            "narrowed": self._support,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the tensors must have their initial values."""
        for name, value in self.entries.items():
            value.copy_(state["values"][name])
        for name, total in self._sums.items():
            total.copy_(state["sums"][name])
        if state["rewound"] is not None:
            self._rewound = {n: x.to(self.entries[n].device) for n, x in state["rewound"].items()}
        self._support = state["narrowed"]


class SparseTuning:
    """The second phase: the entries of a support are the only parameters of a model.

    The support has sorted indices by name of a parameter; parameters without support are frozen.
    After every optimizer step on the ``entries``, call `write`.
    """

    def __init__(self, model: nn.Module, support: Mapping[str, Int[Tensor, "n"]]) -> None:
        self._tensors = {name: model.get_parameter(name) for name in support}
        self.support = {
            name: indices.to(self._tensors[name].device) for name, indices in support.items()
        }
        self._starts = {
            name: tensor.detach().reshape(-1)[self.support[name]]
            for name, tensor in self._tensors.items()
        }
        self.entries = {name: nn.Parameter(start.clone()) for name, start in self._starts.items()}
        model.requires_grad_(False)
        for name, tensor in self._tensors.items():
            tensor.requires_grad_(True)
            tensor.register_post_accumulate_grad_hook(self._keep(name))

    @torch.no_grad()
    def write(self) -> None:
        """Write the values of the entries into the model, after every optimizer step."""
        for name, entry in self.entries.items():
            self._tensors[name].put_(self.support[name], entry)

    @torch.no_grad()
    def add_l1(self, coefficient: float) -> None:
        r"""Add the gradient of :math:`\lambda \sum \lvert\theta - \theta_0\rvert`."""
        for name, entry in self.entries.items():
            pull = coefficient * (entry - self._starts[name]).sign()
            entry.grad = pull if entry.grad is None else entry.grad + pull

    def skill(
        self, about: Mapping[str, Any] | None = None, *, originals: Originals | None = None
    ) -> SparseSkill:
        """Return the skill; arguments are those of `SparseSkill.between`."""
        changes = {}
        for name, start in self._starts.items():
            places = self.support[name]
            known = originals(name, places, start) if originals else start
            change, shape = self.entries[name].detach() - start, tuple(self._tensors[name].shape)
            changes[name] = SparseChange(shape, places, change, digest(known))
        return SparseSkill(changes, dict(about or {}))

    def _keep(self, name: str) -> Callable[[Tensor], None]:
        def keep(tensor: Tensor) -> None:
            assert tensor.grad is not None  # the hook runs after accumulation
            kept = tensor.grad.reshape(-1)[self.support[name]]
            tensor.grad = None
            entry = self.entries[name]
            entry.grad = kept if entry.grad is None else entry.grad + kept

        return keep
