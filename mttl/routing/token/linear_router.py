"""Token routers whose logits are one linear map of the hidden states."""

import torch
from torch import nn

from mttl.routing.token.balance import Balance
from mttl.routing.token.token_router import TokenRouter


class LinearRouter(TokenRouter):
    """A token router with logits ``W x``.

    Small logits at first leave all experts a chance; the Switch Transformer starts with 0.1.
    """

    def __init__(
        self, in_features: int, n_experts: int, init_scale: float, balance: Balance | None
    ) -> None:
        super().__init__(in_features, n_experts, balance)
        self.init_scale = init_scale
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        LinearRouter.reset_parameters(self)

    def reset_parameters(self) -> None:
        """Re-initialise the weight."""
        nn.init.normal_(self.weight, std=(self.init_scale / self.in_features) ** 0.5)
