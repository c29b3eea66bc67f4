"""Routing among members of a library: what each is good for is read from its own weights."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.io.errors import require_positive
from mttl.routing.token.choice import RoutingDecision
from mttl.routing.token.token_router import TokenRouter, check_prior
from mttl.routing.token.tokens import Tokens
from mttl.routing.token.top_k import top_choice


class MemberRouter(TokenRouter):
    r"""Sends each token to the ``top_k`` members of the highest scores.

    The gates are the softmax of the kept scores over the temperature. Nothing is trained: a score
    depends on the token and on what was read of the members' weights, which is kept in buffers. A
    member that changes nothing in this layer is not chosen in it.

    Args:
        in_features: Features I of a token.
        n_experts: Members E.
        top_k: Members per token.
        temperature: Small ones choose the best member, large ones give kept ones equal weights.

    Raises:
        ValueError: If ``top_k`` is not between 1 and E, or the temperature is not positive.
    """

    asks: ClassVar = {"has_factors": "kind"}
    lacks: ClassVar = {
        "balances": "it takes members of a library as they are; set it to 0",
        "trains": "its members exist already. Make a run of them with `mttl library run`, or "
        "train experts with another router, such as top_k",
        "plots": "its run is made of a library, and no routing was recorded in training; count "
        "which tokens take which member (mttl plot RUN --count dev)",
    }
    present: Tensor

    def __init__(
        self, in_features: int, n_experts: int, *, top_k: int = 3, temperature: float = 1.0
    ) -> None:
        super().__init__(in_features, n_experts)
        if not 1 <= top_k <= n_experts:
            raise ValueError(f"top_k ({top_k}) must lie between 1 and n_experts ({n_experts})")
        require_positive(temperature=temperature)
        self.top_k = top_k
        self.temperature = temperature
        self.register_buffer("present", torch.ones(n_experts, dtype=torch.bool))

    @abstractmethod
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        """Take from the members' factors what their scores depend on."""

    @abstractmethod
    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return how well each member fits each token."""

    def reset_parameters(self) -> None:
        """Do nothing: there are no parameters."""

    def choose(self, tokens: Tokens) -> RoutingDecision:
        """Choose the members of the highest scores."""
        logits = self.scores(tokens.states) / self.temperature
        logits = logits.masked_fill(~self.present, -torch.inf)
        if tokens.prior is not None:
            logits = logits + tokens.prior
            check_prior(logits)
        chosen = logits.topk(self.top_k, dim=-1).indices
        return top_choice(logits, chosen, normalise=True, forbids=True)

    def note_present(self, sizes: Float[Tensor, "E"]) -> None:
        """Note which members change anything here; where none does, all may be chosen."""
        self.present.copy_((sizes > 0) | (sizes == 0).all())


def right_factors(
    down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]
) -> Float[Tensor, "E I r"]:
    r"""Return :math:`\sigma_i v_i`, the right singular vectors of ``up @ downᵀ`` times the values.

    The largest come first. With ``A = Q R`` and ``B = P S`` they are ``Q`` times those of the small
    matrix ``S Rᵀ``, so that the product of both factors is never built.
    """
    basis, rest = torch.linalg.qr(down.double())
    core = torch.linalg.qr(up.double()).R @ rest.mT
    _, values, right = torch.linalg.svd(core, full_matrices=False)
    found = basis @ right.mT * values[:, None]
    return torch.nn.functional.pad(found, (0, down.shape[2] - found.shape[2]))
