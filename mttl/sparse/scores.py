r"""Scores by which the support of a sparse skill is chosen, the larger the better.

| name | score of an entry | source |
|---|---|---|
| `magnitude_of_change` | :math:`\lvert\theta_1 - \theta_0\rvert` | LT-SFT |
| the weights themselves | :math:`\lvert\theta_1\rvert` | magnitude pruning |
| `MovementScores` | :math:`-\sum_t \eta_t g_t \theta_t`: it moved away from 0 | movement pruning |
| `FisherScores` | :math:`\mathbb E\,g^2`, one gradient per example | FISH masks |

References:
    Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual Transfer*,
    ACL 2022, arXiv:2110.07560. Sanh, Wolf and Rush, *Movement Pruning: Adaptive Sparsity by
    Fine-Tuning*, NeurIPS 2020, arXiv:2005.07683. Sung, Nair and Raffel, *Training Neural Networks
    with Fixed Sparse Masks*, NeurIPS 2021, arXiv:2111.09839.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def magnitude_of_change(
    start: Mapping[str, Tensor], end: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return how far every entry moved."""
    return {name: (end[name].detach() - value.detach()).abs() for name, value in start.items()}


class MovementScores:
    """Sums up, over the steps of a training, how much each entry is pushed away from zero."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self.scores = {name: torch.zeros_like(value) for name, value in parameters.items()}

    @torch.no_grad()
    def add(self, lr: float) -> None:
        """Add the present gradients; call it before the optimizer's step."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.scores[name].addcmul_(parameter.grad, parameter, value=-lr)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, to continue from."""
        return {"scores": self.scores}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        for name, score in self.scores.items():
            score.copy_(state["scores"][name])


class FisherScores:
    """Sums up squared gradients: the diagonal of the empirical Fisher information.

    It is exact where every gradient is that of one example; the square of a batch's mean gradient
    is smaller, but gives a similar order of entries.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.n_gradients = 0

    @property
    def scores(self) -> dict[str, Tensor]:
        """The mean squared gradient of every entry."""
        return {name: total / max(1, self.n_gradients) for name, total in self._sums.items()}

    @torch.no_grad()
    def add(self) -> None:
        """Add the present gradients."""
        self.n_gradients += 1
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._sums[name].addcmul_(parameter.grad, parameter.grad)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, to continue from."""
        return {"sums": self._sums, "n_gradients": self.n_gradients}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.n_gradients = state["n_gradients"]
        for name, total in self._sums.items():
            total.copy_(state["sums"][name])
