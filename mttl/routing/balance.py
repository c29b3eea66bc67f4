"""Losses that keep all experts of a layer in use."""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from mttl.routing.token import Choice


class Balance(nn.Module):
    """A weighted set of balancing losses; a coefficient of 0 leaves a loss out.

    Args:
        switch: Coefficient of the Switch Transformer's loss.
        z: Coefficient of the z-loss.
    """

    def __init__(self, *, switch: float = 0.0, z: float = 0.0, load: float = 0.0) -> None:
        super().__init__()
        self.switch = switch
        self.z = z
        self.load = load

    def forward(self, choice: "Choice") -> dict[str, Float[Tensor, ""]]:
        """Return the losses of one forward pass by name, coefficients included."""
        losses: dict[str, Tensor] = {}
        n_experts = choice.probabilities.shape[1]
        if self.switch:
            share = choice.experts.bincount(minlength=n_experts) / max(len(choice.experts), 1)
            mean = choice.probabilities.sum(0) / max(len(choice.probabilities), 1)
            losses["switch"] = self.switch * n_experts * (share * mean).sum()
        if self.z:
            losses["z"] = self.z * choice.logits.logsumexp(-1).square().mean()
        return losses
