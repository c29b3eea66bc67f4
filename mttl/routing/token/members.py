"""Token routers for members of a library: by their weights (Arrow, SpectR), or by trained gates."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import TokenRouter, check_prior
from mttl.routing.token.top_k import top_choice


class MemberRouter(TokenRouter):
    r"""Sends each token to the ``top_k`` members with the highest scores.

    The gates are the softmax of these scores over the temperature. Scores depend on the token and
    on buffers computed from the members' weights. A member that changes nothing in this layer is
    not chosen.

    Args:
        top_k: Number of members per token.
        temperature: Temperature of the softmax over the chosen members.

    Raises:
        ValueError: If ``top_k`` is above E.
    """

    asks: ClassVar = {"has_factors": "kind"}
    lacks: ClassVar = {
        "balances": "this router is not trained; set all weights of moe.balance to 0",
        "policies": "it needs members of a library of adapters; set {path}.kind: top_k",
        "trains": "it needs trained members of a library. Make a run of them with `mttl library "
        "run`, or train experts with another router, such as top_k",
        "plots": "the run was created from a library and has no routing statistics of training; "
        "compute them with mttl plot RUN --count dev",
    }
    present: Tensor

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 3,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(in_features, n_experts)
        require_at_most("n_experts", n_experts, top_k=top_k)
        self.top_k = top_k
        self.temperature = temperature
        self.register_buffer("present", torch.ones(n_experts, dtype=torch.bool))

    @abstractmethod
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        """Compute the buffers of the scores from the members' factors."""

    @abstractmethod
    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return the score of each member for each token."""

    def reset_parameters(self) -> None:
        pass

    def choose(self, tokens: Tokens) -> Assignment:
        logits = self.scores(tokens.states) / self.temperature
        logits = logits.masked_fill(~self.present, -torch.inf)
        if tokens.prior is not None:
            logits = logits + tokens.prior
            check_prior(logits)
        chosen = logits.topk(self.top_k, dim=-1).indices
        return top_choice(logits, chosen, normalise=True, forbids=True)

    def note_present(self, sizes: Float[Tensor, "E"]) -> None:
        """Record the members that change this layer; if none does, all may be chosen."""
        self.present.copy_((sizes > 0) | (sizes == 0).all())


class ArrowRouter(MemberRouter):
    r"""Chooses members of a library by their first singular vectors; without training.

    A token's score is :math:`|x^\top v_e|`, with :math:`v_e` the first right singular vector of the
    member's change :math:`B_e A_e^\top`. The absolute value removes the arbitrary sign.

    PEFT computes :math:`v_e` by power iteration from a random start; here it is exact. PEFT also
    rejects members that lack the layer, and applies dropout to the sum of the members.

    References:
        Ostapenko et al., *Towards Modular LLMs by Building and Reusing a Library of LoRAs*, ICML
        2024, arXiv:2405.11157.
    """

    prototypes: Tensor

    def __init__(self, in_features: int, n_experts: int, **settings: Any) -> None:
        super().__init__(in_features, n_experts, **settings)
        self.register_buffer("prototypes", torch.zeros(n_experts, in_features))

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        first = right_factors(down, up)[:, :, 0]
        sizes = first.norm(dim=1)
        self.note_present(sizes)
        self.prototypes.copy_(first / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)[:, None])

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        return (states @ self.prototypes.float().t()).abs()


class SpectralRouter(MemberRouter):
    r"""Chooses members of a library by the norm of their change of a token; without training.

    A token's score is :math:`\lVert S_e V_e^\top x \rVert_2` with
    :math:`B_e A_e^\top = U_e S_e V_e^\top`: the norm of the member's change of the layer's output,
    scale included. It needs r numbers per feature and member.

    Args:
        rank: Rank r of the members.

    References:
        Fleshman and Van Durme, *SpectR: Dynamically Composing LM Experts with Spectral Routing*,
        2025, arXiv:2504.03454.
    """

    internal = ("rank",)
    spectra: Tensor

    def __init__(self, in_features: int, n_experts: int, *, rank: int, **settings: Any) -> None:
        super().__init__(in_features, n_experts, **settings)
        self.register_buffer("spectra", torch.zeros(n_experts, in_features, rank))

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        found = right_factors(down, up)
        self.note_present(found[:, :, 0].norm(dim=1))
        self.spectra.copy_(found)

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        columns = self.spectra.float().transpose(0, 1).flatten(1)  # (I, E r)
        return (states @ columns).unflatten(1, (self.n_experts, -1)).norm(dim=-1)


def right_factors(
    down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]
) -> Float[Tensor, "E I r"]:
    r"""Return :math:`\sigma_i v_i`, the scaled right singular vectors of ``up @ downᵀ``.

    The largest come first. With ``A = Q R`` and ``B = P S`` they are ``Q`` times those of the small
    matrix ``S Rᵀ``, which avoids the product of the factors.
    """
    basis, rest = torch.linalg.qr(down.double())
    core = torch.linalg.qr(up.double()).R @ rest.mT
    _, values, right = torch.linalg.svd(core, full_matrices=False)
    found = basis @ right.mT * values[:, None]
    return torch.nn.functional.pad(found, (0, down.shape[2] - found.shape[2]))


class PhatgooseRouter(MemberRouter):
    r"""Chooses members of a library by gates, which `mttl library run` trains (Phatgoose).

    A token's score is :math:`\bar v_e^\top \bar x / \sqrt I` with the standardised token and gate
    :math:`v_e` of the member in this layer. Gates are trained on the members' tasks with frozen
    members: a member's change is multiplied by :math:`\sigma(v_e^\top x)`, which starts at 1/2.

    Args:
        gate_steps: Training steps of the gates, on batches of all members' tasks.
        gate_lr: Learning rate of the gates.

    Attributes:
        learning: Whether gates are being trained; each token then goes to the members that its
            prior allows, with sigmoid gates.

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
        nn.init.zeros_(self.gates)  # half open

    @torch.no_grad()
    def read(self, down: Float[Tensor, "E I r"], up: Float[Tensor, "E O r"]) -> None:
        self.note_present(down.norm(dim=(1, 2)) * up.norm(dim=(1, 2)))

    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        size = (self.in_features,)
        found = layer_norm(states, size) @ layer_norm(self.gates.float(), size).t()
        return found / self.in_features**0.5

    def choose(self, tokens: Tokens) -> Assignment:
        if not self.learning:
            return super().choose(tokens)
        assert tokens.prior is not None
        logits = tokens.states @ self.gates.float().t()
        rows, experts = (tokens.prior > -torch.inf).nonzero(as_tuple=True)
        opened = logits.sigmoid()
        own = torch.softmax(tokens.prior, dim=-1)
        return Assignment(rows, experts, opened[rows, experts], own, logits)
