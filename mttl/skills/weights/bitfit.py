"""Bias skills: one vector added to a layer's output."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.routing.token.choice import Assignment, gate_matrix
from mttl.skills.inventory import Inputs, Merged, Outputs, Weights, ZeroInventory


class BitFitInventory(ZeroInventory):
    r"""Changes of the layer's bias: :math:`y = W_0 x + b_0 + \sum_k w_k b_k`.

    A layer without a bias gets the skills' bias, which cannot be folded into the layer.

    References:
        Ben Zaken, Goldberg and Ravfogel, *BitFit: Simple Parameter-efficient Fine-tuning for
        Transformer-based Masked Language-models*, ACL 2022, arXiv:2106.10199.
    """

    uses = ("task", "token")
    adapter_format = "BEFT"
    undecayed = ("bias",)

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, *, n_heads: int = 1
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.bias = nn.Parameter(torch.zeros(n_skills, out_features))

    def merge(self, weights: Weights) -> Merged:
        return (mix_blocks(self.bias, weights),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        return y + merged[0].to(active_dtype(y)).unsqueeze(1)

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        dtype = active_dtype(x)
        return gate_matrix(assignment).to(dtype) @ self.bias.to(dtype)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        if bias is None:
            raise NotImplementedError(
                "the layer has no bias; use mttl export, which writes one for PEFT"
            )
        return weight, bias + mix_blocks(self.bias, weights[None])[0]
