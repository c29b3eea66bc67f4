"""Frozen skills under attention: an inventory that chooses by token rather than by task."""

from collections.abc import Sequence
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.fusion import FusionAttention
from mttl.aggregation.products import active_dtype
from mttl.plugins.part_settings import NonNegative, OneOf, PositiveInt
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights


class AttendedInventory(Inventory):
    """Skills whose outputs attention weighs at every token (AdapterFusion).

    The skills stay as they are; only the attention is trained. It takes the router's place, so the
    mixing weights do not enter, and has the role of a router of tokens: it learns at the skills'
    rate, not at the fast rate of routing logits.

    Args:
        skills: The trained skills, low-rank ones or adapters; they are frozen.
        query: What a token asks with: ``"output"``, what the base layer made of it, or ``"input"``.
        key_size: Size of queries and keys; the output features by default.
        value: Transform the mixture by a matrix that starts as the identity.
        value_penalty: Weight in the loss of that matrix's squared distance from the identity.

    References:
        Pfeiffer, Kamath, Rücklé, Cho and Gurevych, EACL 2021, arXiv:2005.00247.
    """

    cut_by_heads = ()
    no_weight = "attention chooses skills by token, so that no weight stands for those of a task"

    def __init__(
        self,
        skills: Inventory,
        *,
        query: Annotated[str, OneOf("output", "input")] = "output",
        key_size: PositiveInt | None = None,
        value: bool = True,
        value_penalty: NonNegative = 0.01,
    ) -> None:
        super().__init__(skills.in_features, skills.out_features, skills.n_skills, skills.n_heads)
        self.query = query
        self.value_penalty = value_penalty
        self.skills = skills.requires_grad_(False)
        self.attention = FusionAttention(
            skills.out_features if query == "output" else skills.in_features,
            skills.out_features,
            key_size=key_size,
            value=value,
        )

    def reset_parameters(self) -> None:
        self.skills.reset_parameters()
        self.attention.reset_parameters()

    def merge(self, weights: Weights) -> Merged:
        """Return the keys of the skills, which depend on neither examples nor ``weights``."""
        return (self.attention.directions(self.skills.last_product()),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        x, y = x.to(dtype), y.to(dtype)
        hidden, up = self.skills.hidden_units(x, y), self.skills.last_product().to(dtype)
        weights = self.attention(x if self.query == "input" else y, hidden, *merged)
        # (B, L, K r) · (K r, O): the sum over skills is part of the product.
        mixture = (weights.unsqueeze(-1) * hidden).flatten(2) @ up.mT.flatten(0, 1)
        return y + self.attention.values(mixture)

    def combine_tokens(
        self,
        x: Float[Tensor, "N I"],
        y: Float[Tensor, "N O"],
        merged: Merged,
        segments: Sequence[int],
    ) -> Float[Tensor, "N O"]:
        """Add the attended outputs, for which it does not matter whose token one is."""
        return self.combine(x[None], y[None], merged)[0]

    def penalties(self) -> dict[str, Tensor]:
        if self.attention.value_change is None or not self.value_penalty:
            return {}
        return {"fusion": self.value_penalty * self.attention.value_distance()}
