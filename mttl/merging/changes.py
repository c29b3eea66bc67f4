"""The difference of a tuned model and its base, one tensor at a time."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.merging.mixture import MixtureChange
from mttl.merging.weights_folder import Weights


@dataclass(frozen=True)
class DenseChange:
    """The difference of a tuned model and its base."""

    name: str
    weights: Weights

    def touches(self, tensor: str) -> bool:
        """Return whether the tensor may have changed: any that the model has may."""
        return tensor in self.weights

    def read(self, tensor: str, base: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the difference, in the precision of ``base``."""
        if not self.touches(tensor):
            return torch.zeros_like(base)
        return self.weights[tensor].to(base.dtype) - base


Change = DenseChange | MixtureChange
