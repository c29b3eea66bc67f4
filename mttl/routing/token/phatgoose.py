"""PHATGOOSE: a token goes to the members whose gates, trained afterwards, it opens most."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.members import MemberRouter


class PhatgooseRouter(MemberRouter):
    r"""Chooses members of a library by gates that are trained when the run is made of it.

    A token is scored by :math:`\bar v_e^\top \bar x / \sqrt I`, gate and token standardised.
    Each member has a gate :math:`v_e` in the layer. It is learned after the member, which is
    frozen, on the member's own task: there the member's change is multiplied by
    :math:`\sigma(v_e^\top x)`, starting at 1/2. Standardising takes from each vector the mean of
    its entries and divides by their deviation.

    Args:
        top_k: Members per token.
        temperature: Temperature of the softmax over the kept ones.
        gate_steps: Steps in which the gates are trained, on batches of all members' tasks.
        gate_lr: Learning rate of the gates.

    Attributes:
        learning: Whether gates are being trained: each token goes to the members that its prior
            allows, and their gates are sigmoids.

    References:
        Muqeeth, Liu, Liu and Raffel, *Learning to Route Among Specialized Experts for Zero-Shot
        Generalization*, ICML 2024, arXiv:2402.05859.
    """

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 2,
        temperature: Positive = 1.0,
        gate_steps: PositiveInt = 100,
        gate_lr: Positive = 5e-3,
    ) -> None:
        super().__init__(in_features, n_experts, top_k=top_k, temperature=temperature)
        self.gates = nn.Parameter(torch.zeros(n_experts, in_features))
        self.gate_steps, self.gate_lr = gate_steps, gate_lr
        self.learning = False

    def reset_parameters(self) -> None:
        """Open all gates half."""
        nn.init.zeros_(self.gates)

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        """Note which members change anything here."""
        self.note_present(down.norm(dim=(1, 2)) * up.norm(dim=(1, 2)))

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return the standardised products of tokens and gates."""
        size = (self.in_features,)
        found = layer_norm(states, size) @ layer_norm(self.gates.float(), size).t()
        return found / self.in_features**0.5

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose the members of the highest scores; while gates are learned, the given ones."""
        if not self.learning:
            return super().choose(tokens)
        assert tokens.prior is not None
        logits = tokens.states @ self.gates.float().t()
        rows, experts = (tokens.prior > -torch.inf).nonzero(as_tuple=True)
        opened = logits.sigmoid()
        own = torch.softmax(tokens.prior, dim=-1)
        return Assignment(rows, experts, opened[rows, experts], own, logits)
