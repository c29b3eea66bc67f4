"""Skills of norms: changes of their gains and biases."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.skills.inventory import Inputs, Merged, Outputs, Weights, ZeroInventory


class NormInventory(ZeroInventory):
    r"""Changes of the gains and biases of norms.

    :math:`y = (g + \sum_k w_k g_k) \odot n(x) + b + \sum_k w_k b_k` with the normalised features
    :math:`n(x)`. A norm without a bias, such as T5's, only gets changes of its gain. BitFit trains
    biases of layer norms and of linear layers (kind ``bitfit``); tuning only norms is a separate
    method.

    Args:
        biased: Whether the norm has a bias.

    References:
        Ben Zaken, Goldberg and Ravfogel, *BitFit*, ACL 2022, arXiv:2106.10199. Qi et al.,
        *Parameter-Efficient Tuning on Layer Normalization for Pre-trained Language Models*,
        arXiv:2211.08682.
    """

    internal = ("biased",)
    section_defaults: ClassVar = {"targets": ["norms"]}
    attachment_point = "norm"
    adapter_format = "LN_TUNING"
    undecayed = ("gain", "bias")

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, biased: int, *, n_heads: int = 1
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.gain = nn.Parameter(torch.zeros(n_skills, out_features))
        self.bias = nn.Parameter(torch.zeros(n_skills, out_features)) if biased else None

    def merge(self, weights: Weights) -> Merged:
        return tuple(mix_blocks(stack, weights) for stack in self.parameters())

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        # Autocast keeps norms in single precision, too.
        gain, *bias = (part.to(y.dtype).unsqueeze(1) for part in merged)
        return torch.addcmul(sum(bias, y), x.to(y.dtype), gain)

    def changes(self) -> Float[Tensor, "K O"]:
        return self.gain

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        gain, *biases = self.merge(weights[None])
        return weight + gain[0], bias + biases[0][0] if biases and bias is not None else bias
