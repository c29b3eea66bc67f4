"""AdapterFusion: attention that weighs frozen skills at every token."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype
from mttl.plugins.part_settings import NonNegative, OneOf, PositiveInt
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights


class FusionAttention(nn.Module):
    r"""Attention over the outputs of K low-rank skills of one layer.

    With h the query's features at a token and :math:`z_k = s B_k A_k^\top x` the output of skill k,

    .. math:: a_k = \mathrm{softmax}_k\big((Q h + b)^\top K z_k\big), \qquad
              y' = y + V \sum_k a_k z_k .

    V starts as the identity; the parameter is its difference from it. Since skills are low-rank,
    :math:`K z_k = (s K B_k) (A_k^\top x)` avoids computing the outputs :math:`z_k`. For adapters
    :math:`A_k^\top x` are the hidden units. A bias of the keys would cancel in the softmax.

    References:
        Pfeiffer, Kamath, Rücklé, Cho and Gurevych, *AdapterFusion: Non-Destructive Task Composition
        for Transfer Learning*, EACL 2021, arXiv:2005.00247.
    """

    role = "token_router"  # trained at the skills' rate, not at that of routing logits

    def __init__(
        self, query_features: int, out_features: int, *, key_size: int, value: bool
    ) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(key_size, query_features))
        self.query_bias = nn.Parameter(torch.empty(key_size))
        self.key = nn.Parameter(torch.empty(key_size, out_features))
        shape = (out_features, out_features)
        self.value_change = nn.Parameter(torch.empty(shape)) if value else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw queries and keys as `nn.Linear` does, and set V to the identity."""
        for weight in (self.query, self.key):
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)
        nn.init.zeros_(self.query_bias)
        if self.value_change is not None:
            nn.init.zeros_(self.value_change)

    def forward(
        self,
        features: Float[Tensor, "B L F"],
        hidden: Float[Tensor, "B L K r"],
        directions: Float[Tensor, "K r D"],
    ) -> Float[Tensor, "B L K"]:
        """Return the weight of every skill at every token."""
        dtype = hidden.dtype
        query = nn.functional.linear(
            features.to(dtype), self.query.to(dtype), self.query_bias.to(dtype)
        )
        reads = query @ directions.to(dtype).flatten(0, 1).t()  # (B, L, K r)
        return (reads.view_as(hidden) * hidden).sum(-1).softmax(-1)


class AttendedInventory(Inventory):
    r"""Frozen skills whose outputs are weighed by attention at every token (AdapterFusion).

    .. math:: y' = y + V \sum_k \mathrm{softmax}_k\big((Q h + b)^\top K z_k\big) z_k

    with :math:`z_k` the output of skill k, as in `FusionAttention`. Only the attention is trained,
    at the skills' learning rate. It replaces the router: mixing weights have no effect.

    Args:
        skills: Trained skills, low-rank or adapters; they are frozen.
        query: Features h of the query: the base layer's ``"output"`` or ``"input"``.
        key_size: Size D of queries and keys; O by default, as published.
        value: Whether V transforms the mixture; otherwise V stays the identity.
        value_penalty: Weight in the loss of the squared distance of V from the identity.

    References:
        Pfeiffer, Kamath, Rücklé, Cho and Gurevych, EACL 2021, arXiv:2005.00247.
    """

    no_weight = "attention chooses skills by token, so a task has no fixed change of the weight"

    def __init__(
        self,
        skills: Inventory,
        *,
        query: Annotated[str, OneOf("output", "input")] = "output",
        key_size: PositiveInt | None = None,
        value: bool = True,
        value_penalty: NonNegative = 0.01,
    ) -> None:
        super().__init__(skills.in_features, skills.out_features, skills.n_skills)
        self.query = query
        self.value_penalty = value_penalty
        self.skills = skills.requires_grad_(False)
        self.attention = FusionAttention(
            skills.out_features if query == "output" else skills.in_features,
            skills.out_features,
            key_size=skills.out_features if key_size is None else key_size,
            value=value,
        )

    def reset_parameters(self) -> None:
        self.skills.reset_parameters()
        self.attention.reset_parameters()

    def merge(self, weights: Weights) -> Merged:
        """Return the keys of every skill's ranks, which do not depend on ``weights``."""
        up = self.skills.last_product()
        return (up.mT @ self.attention.key.t().to(up.dtype),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        x, y = x.to(dtype), y.to(dtype)
        hidden, up = self.skills.hidden_units(x, y), self.skills.last_product().to(dtype)
        weights = self.attention(x if self.query == "input" else y, hidden, *merged)
        # (B, L, K r) · (K r, O): the sum over skills is part of the product.
        mixture = (weights.unsqueeze(-1) * hidden).flatten(2) @ up.mT.flatten(0, 1)
        if (change := self.attention.value_change) is not None:
            mixture = mixture + nn.functional.linear(mixture, change.to(mixture.dtype))
        return y + mixture

    def combine_tokens(
        self,
        x: Float[Tensor, "N I"],
        y: Float[Tensor, "N O"],
        merged: Merged,
        segments: Sequence[int],
    ) -> Float[Tensor, "N O"]:
        """Add the attended outputs, which do not depend on the examples of the tokens."""
        return self.combine(x[None], y[None], merged)[0]

    def penalties(self) -> dict[str, Tensor]:
        change = self.attention.value_change
        if change is None or not self.value_penalty:
            return {}
        return {"fusion": self.value_penalty * change.square().sum()}
