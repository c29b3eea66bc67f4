"""SpectR: a token goes to the members that change it most."""

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.io.errors import require_at_least
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.routing.token.members import MemberRouter, right_factors


class SpectralRouter(MemberRouter):
    r"""Chooses members of a library by the length of their change of a token; without training.

    A token is scored by :math:`\lVert S_e V_e^\top x \rVert_2`, all singular vectors of a member.
    With :math:`B_e A_e^\top = U_e S_e V_e^\top` this is the length of what the member adds to the
    layer's output, scale included. Where Arrow asks for one direction, this asks for the whole
    spectrum, at the cost of r numbers per feature and member. The gates are those of Arrow, the
    softmax of the kept scores.

    Args:
        in_features: Features I of a token.
        n_experts: Members E.
        rank: Rank r of the members.
        top_k: Members per token.
        temperature: Temperature of the softmax over the kept ones.

    Raises:
        ValueError: As for `MemberRouter`, or if the rank is not positive.

    References:
        Fleshman and Van Durme, *SpectR: Dynamically Composing LM Experts with Spectral Routing*,
        2025, arXiv:2504.03454.
    """

    internal = ("rank",)
    spectra: Tensor

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        rank: int,
        top_k: PositiveInt = 3,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(in_features, n_experts, top_k=top_k, temperature=temperature)
        require_at_least(1, rank=rank)
        self.register_buffer("spectra", torch.zeros(n_experts, in_features, rank))

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        """Keep the right singular vectors of every member times their values."""
        found = right_factors(down, up)
        self.note_present(found[:, :, 0].norm(dim=1))
        self.spectra.copy_(found)

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return the length of what each member makes of a token."""
        columns = self.spectra.float().transpose(0, 1).flatten(1)  # (I, E r)
        return (states @ columns).unflatten(1, (self.n_experts, -1)).norm(dim=-1)
