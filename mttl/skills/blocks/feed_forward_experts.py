"""Feed-forward experts that tokens choose: as replacements of a block, or as adapters."""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.grouped import grouped_linear
from mttl.io.errors import require_at_least, require_one_of
from mttl.plugins.part_settings import Fraction, ReadFrom
from mttl.routing.token.choice import Assignment, combine, sort_by_expert
from mttl.skills.inventory import Inventory

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


class FeedForwardExperts(Inventory):
    r"""Feed-forward experts: :math:`W_o\,a(W_i x)`, or gated :math:`W_o(a(W_g x) \odot W_i x)`.

    Args:
        hidden_features: Hidden units F of an expert.
        activation: Activation a: ``"relu"``, ``"gelu"``, ``"gelu_new"`` (tanh approximation),
            ``"silu"``, or any function.
        gated: Whether to multiply by a second projection. The parameter ``up`` then has the shape
            (E, 2F, I), the rows of the gate first; otherwise (E, F, I).
        bias: Whether both projections have a bias.
        dropout: Dropout probability of the hidden units during training.

    Raises:
        ValueError: If the activation is unknown.
    """

    uses = ("token",)
    undecayed = ("up_bias", "down_bias")

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        n_experts: int,
        *,
        activation: str | Activation = "relu",
        gated: bool = False,
        bias: bool = False,
        dropout: Fraction = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, n_experts)
        require_at_least(1, hidden_features=hidden_features)
        self.hidden_features = hidden_features
        self.activation, self.gated, self.dropout = activation_of(activation), gated, dropout
        n_up = (1 + gated) * hidden_features
        self.up = nn.Parameter(torch.empty(n_experts, n_up, in_features))
        self.down = nn.Parameter(torch.empty(n_experts, out_features, hidden_features))
        self.up_bias = nn.Parameter(torch.zeros(n_experts, n_up)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(n_experts, out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as `nn.Linear` does; biases are 0."""
        for weight in (self.up, self.down):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
        for bias in (self.up_bias, self.down_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        work = sort_by_expert(assignment)
        hidden = grouped_linear(x[work.tokens], self.up, self.up_bias, work.counts)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        hidden = nn.functional.dropout(hidden, self.dropout, self.training)
        y = grouped_linear(hidden, self.down, self.down_bias, work.counts)
        return combine(y, work, len(x))


ActivationSetting = Annotated[
    str | Activation, ReadFrom(Literal["relu", "gelu", "gelu_new", "silu"])
]


def activation_of(name: str | Activation) -> Activation:
    """Return the activation of a name, or a given function; ValueError if the name is unknown."""
    if not isinstance(name, str):
        return name
    require_one_of(ACTIVATIONS, activation=name)
    return ACTIVATIONS[name]
