"""The mixture-of-experts layer."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.routing.context import Routing, RoutingSlot
from mttl.routing.token.choice import Assignment, capacity_of, keep_pairs, within_capacity
from mttl.routing.token.masks import TokenRecord
from mttl.routing.token.members import MemberRouter
from mttl.routing.token.token_router import TokenRouter
from mttl.skills.inventory import Inventory


class SharedExpert(nn.Module):
    """An expert that processes every token with weight 1, for common knowledge.

    References:
        Dai et al., *DeepSeekMoE*, 2024, arXiv:2401.06066, section 3.2.
    """

    def __init__(self, experts: Inventory) -> None:
        super().__init__()
        if experts.reads != "input":
            raise ValueError(f"{type(experts).__name__} cannot be a shared expert")
        self.experts = experts

    def forward(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        tokens = torch.arange(len(x), device=x.device)
        ones = torch.ones(len(x), device=x.device)
        assignment = Assignment(tokens, torch.zeros_like(tokens), ones, ones[:, None])
        return self.experts.dispatch(x, assignment)


class MoELayer(nn.Module):
    r"""A mixture-of-experts layer: :math:`y = f(x) + \sum_{e \in S(x)} g_e(x) E_e(x)`.

    Args:
        experts: Skills of a kind that tokens can choose.
        router: Router of the tokens.
        slot: Slot with the routing of a forward pass; shared by all layers of a model.
        base: Module f that the experts augment; without it they replace the module.
        shared: Expert that processes all tokens, added to the others.
        name: Path of the module, for reports.
        stack: Stack of the tokens: ``"encoder"``, ``"decoder"`` or ``"model"``.
        capacity_factor: Largest multiple of an even share of the pairs that an expert processes in
            training; None drops nothing.
        eval_capacity_factor: Capacity factor in evaluation.
        prior: Use of the mixing weights of a token's task: none, their logarithms as a bias of the
            ``"logits"``, a ``"mask"`` of the experts with positive weights, or a ``"balance"``: the
            localised loss prefers these experts (`mttl.routing.token.balance.localised_loss`).
        group: Routed group whose mixing weights are the prior.
        causal: Whether a token must not depend on later ones.

    Raises:
        ValueError: If tokens cannot choose such skills, sizes differ, or the router does not
            support a causal decoder.
    """

    def __init__(
        self,
        experts: Inventory,
        router: TokenRouter,
        slot: RoutingSlot,
        *,
        base: nn.Module | None = None,
        shared: nn.Module | None = None,
        name: str = "",
        stack: str = "model",
        capacity_factor: float | None = None,
        eval_capacity_factor: float | None = None,
        prior: Literal["logits", "mask", "balance"] | None = None,
        group: int | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        experts.require_use("token")
        problems = {
            f"the router has {router.n_experts} experts, but the layer has {experts.n_skills}": (
                router.n_experts != experts.n_skills
            ),
            f"{type(router).__name__} depends on later tokens, so it cannot route a causal "
            "decoder; use it in an encoder": causal and not router.causal,
            f"{type(experts).__name__} acts on the output of a base module; pass base": (
                base is None and experts.reads == "output"
            ),
        }
        if found := next((problem for problem, wrong in problems.items() if wrong), None):
            raise ValueError(found)
        self.experts, self.router, self.slot = experts, router, slot
        self.base, self.shared = base, shared
        self.name, self.stack = name, stack
        self.capacity_factor, self.eval_capacity_factor = capacity_factor, eval_capacity_factor
        self.prior, self.group = prior, group

    @property
    def weight(self) -> Tensor:
        """The base module's weight, whose dtype backbones read."""
        return self.base.weight  # type: ignore[return-value, union-attr]

    @property
    def bias(self) -> Tensor | None:
        """The base module's bias, if it has one."""
        return getattr(self.base, "bias", None)

    def read_members(self) -> None:
        """Pass the experts' factors to a `MemberRouter`; NotImplementedError if they have none."""
        if isinstance(self.router, MemberRouter):
            self.router.read(*self.experts.factors())

    def forward(self, x: Float[Tensor, "R *positions I"]) -> Float[Tensor, "R *positions O"]:
        routing = self.slot.current
        assignment = self._assign(x, routing)
        factor = self.capacity_factor if self.training else self.eval_capacity_factor
        processed, kept = assignment, None
        if factor is not None:
            room = capacity_of(len(assignment.tokens), self.router.n_experts, factor)
            kept = within_capacity(assignment, room)
            processed = keep_pairs(assignment, kept)
        if self.base is None or self.experts.reads == "block":
            y = self.experts.dispatch(x.flatten(0, -2), processed)
        else:
            y = self.base(x).flatten(0, -2)
            read = y if self.experts.reads == "output" else x.flatten(0, -2)
            y = y + self.experts.dispatch(read, processed)
        if self.shared is not None:
            y = y + self.shared(x.flatten(0, -2))
        routing.add_losses(assignment.losses)
        sizes = *routing.rows_and_positions(x), self.router.n_experts
        pairs = assignment.tokens, assignment.experts, kept
        routing.records.append(TokenRecord(self.name, self.stack, *sizes, *pairs))
        return y.view(*x.shape[:-1], y.shape[-1])

    def _assign(self, x: Float[Tensor, "R *positions I"], routing: Routing) -> Assignment:
        ids = self.router.needs_token_ids
        tokens = routing.layer_tokens(x, self.stack, self.group, ids=ids)
        weights = tokens.prior
        if weights is not None and self.prior == "balance":
            tokens = replace(tokens, prior=None, own=weights > 0)
        elif weights is not None:
            weights = weights if self.prior == "logits" else (weights > 0).to(weights)
            # Minus infinity at weight 0, without infinite gradients.
            logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
            tokens = replace(tokens, prior=logs.masked_fill(weights == 0, -torch.inf))
        return self.router(tokens)
