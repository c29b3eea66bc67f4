"""Skills of normalisations: changes of their gains, and of their biases."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.skills.inventory import Inventory, Merged, require_divisible


class NormInventory(Inventory):
    r"""Changes of the gains of norms, and of their biases.

    K changes of a norm: :math:`y = (g + \sum_k w_k g_k) \odot n(x) + b + \sum_k w_k b_k`.

    :math:`n(x)` are the normalised features. A norm without a bias, such as T5's, gets changes of
    its gain alone. BitFit trains the biases of layer norms with those of linear layers (kind
    ``bitfit``); tuning gains and biases of norms alone is a method of its own.

    Args:
        in_features: Features that are normalised.
        out_features: The same.
        n_skills: Skills K.
        biased: Whether the norm has a bias.
        n_heads: Heads H; must divide the features.

    Raises:
        ValueError: If a size is not positive or H does not divide the features.

    References:
        Ben Zaken, Goldberg and Ravfogel, *BitFit*, ACL 2022, arXiv:2106.10199. Qi et al.,
        *Parameter-Efficient Tuning on Layer Normalization for Pre-trained Language Models*,
        arXiv:2211.08682.
    """

    internal = ("biased",)
    section_defaults: ClassVar = {"targets": ["norms"]}
    uses = ("task",)
    attachment_point = "norm"
    undecayed = ("gain", "bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        biased: int,
        *,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        require_divisible(n_heads, out_features=out_features)
        self.gain = nn.Parameter(torch.zeros(n_skills, out_features))
        self.bias = nn.Parameter(torch.zeros(n_skills, out_features)) if biased else None

    def reset_parameters(self) -> None:
        """Set all changes to 0."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Return the changes of gain and bias of each example."""
        return tuple(mix_blocks(stack, weights) for stack in self.parameters())

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Add what the changes make of the normalised features ``x`` to the norm's output."""
        # Autocast leaves norms in single precision, too.
        gain, *bias = (part.to(y.dtype).unsqueeze(1) for part in merged)
        return torch.addcmul(sum(bias, y), x.to(y.dtype), gain)

    def changes(self) -> Float[Tensor, "K O"]:
        """Return what each skill alone adds to the gain."""
        return self.gain

    def fold(
        self,
        weight: Float[Tensor, "O"],
        bias: Float[Tensor, "O"] | None,
        weights: Float[Tensor, "H K"],
    ) -> tuple[Float[Tensor, "O"], Float[Tensor, "O"] | None]:
        """Return the changed gain and bias."""
        gain, *biases = self.merge(weights[None])
        return weight + gain[0], bias + biases[0][0] if biases and bias is not None else bias
