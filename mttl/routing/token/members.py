"""Routing among members of a library: by their own weights (Arrow, SpectR), or by trained gates."""

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
    r"""Sends each token to the ``top_k`` members of the highest scores.

    The gates are the softmax of the kept scores over the temperature. Nothing is trained: a score
    depends on the token and on what was read of the members' weights, which is kept in buffers. A
    member that changes nothing in this layer is not chosen in it.

    Args:
        top_k: Members per token.
        temperature: Temperature of the softmax over the kept ones.

    Raises:
        ValueError: If ``top_k`` is above E.
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
        """Take from the members' factors what their scores depend on."""

    @abstractmethod
    def scores(self, states: Float[Tensor, "N I"]) -> Float[Tensor, "N E"]:
        """Return how well each member fits each token."""

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
        """Note which members change anything here; where none does, all may be chosen."""
        self.present.copy_((sizes > 0) | (sizes == 0).all())


class ArrowRouter(MemberRouter):
    r"""Chooses members of a library by the direction that each stretches most; without training.

    A token is scored by :math:`|x^\top v_e|`, with :math:`v_e` the first right singular vector.
    :math:`v_e` is the direction of the input that the change :math:`B_e A_e^\top` of a member
    stretches most. Its sign means nothing, hence the absolute value.

    PEFT finds :math:`v_e` by power iteration from a random start; here it is exact. PEFT refuses a
    member that lacks the layer, and has dropout on the members' sum.

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
    r"""Chooses members of a library by the length of their change of a token; without training.

    A token is scored by :math:`\lVert S_e V_e^\top x \rVert_2`, all singular vectors of a member.
    With :math:`B_e A_e^\top = U_e S_e V_e^\top` this is the length of what the member adds to the
    layer's output, scale included, at the cost of r numbers per feature and member.

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
    r"""Return :math:`\sigma_i v_i`, the right singular vectors of ``up @ downᵀ`` times the values.

    The largest come first. With ``A = Q R`` and ``B = P S`` they are ``Q`` times those of the small
    matrix ``S Rᵀ``, so that the product of both factors is never built.
    """
    basis, rest = torch.linalg.qr(down.double())
    core = torch.linalg.qr(up.double()).R @ rest.mT
    _, values, right = torch.linalg.svd(core, full_matrices=False)
    found = basis @ right.mT * values[:, None]
    return torch.nn.functional.pad(found, (0, down.shape[2] - found.shape[2]))


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
        nn.init.zeros_(self.gates)  # all are half open

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
