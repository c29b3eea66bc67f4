"""Arrow: a token goes to the members whose change is largest along it."""

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.routing.token.members import MemberRouter, right_factors


class ArrowRouter(MemberRouter):
    r"""Chooses members of a library by the direction that each stretches most; without training.

    A token is scored by :math:`|x^\top v_e|`, with :math:`v_e` the first right singular vector.
    :math:`v_e` is the direction of the input that the change :math:`B_e A_e^\top` of a member
    stretches most. Its sign means nothing, hence the absolute value.

    PEFT's layer finds :math:`v_e` by 15 steps of power iteration from a random start; here it is
    exact. A member that lacks the layer, which PEFT refuses, is not chosen in it. Members' scales
    do not move :math:`v_e`. PEFT has dropout on the members' sum, and here there is none.

    Args:
        in_features: Features I of a token.
        n_experts: Members E.
        top_k: Members per token.
        temperature: Temperature of the softmax over the kept ones.

    References:
        Ostapenko et al., *Towards Modular LLMs by Building and Reusing a Library of LoRAs*, ICML
        2024, arXiv:2405.11157.
    """

    prototypes: Tensor

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 3,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(in_features, n_experts, top_k=top_k, temperature=temperature)
        self.register_buffer("prototypes", torch.zeros(n_experts, in_features))

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        """Keep the first right singular vector of every member, of length 1."""
        first = right_factors(down, up)[:, :, 0]
        sizes = first.norm(dim=1)
        self.note_present(sizes)
        self.prototypes.copy_(first / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)[:, None])

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return the length of a token's part along each prototype."""
        return (states @ self.prototypes.float().t()).abs()
