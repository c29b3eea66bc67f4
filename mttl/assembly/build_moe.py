"""Build mixture-of-experts layers from the section ``moe``."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from mttl.config.moe_schema import AnyMoE, MoE, UpcycledExperts
from mttl.io.errors import ConfigError, raised_as
from mttl.moe.attach_experts import Place, attach_experts, expert_places
from mttl.moe.parallel import check_shardable
from mttl.moe.upcycle import silent, upcycle
from mttl.plugins.classes import arguments
from mttl.routing.context import RoutingSlot
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.token_router import TokenRouter
from mttl.skills.attach import Attachment
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts
from mttl.skills.inventory import Inventory
from mttl.skills.targets import path_matches


def build_experts(
    model: PreTrainedModel, moe: MoE, *, slot: RoutingSlot, granularity: str, groups: Sequence[str]
) -> Attachment:
    """Put the experts of the section on a backbone."""
    embeddings: Any = model.get_input_embeddings()
    upcycled = isinstance(moe.experts, UpcycledExperts)
    kind = moe.experts if upcycled else moe.experts.part_class

    def count(place: Place) -> int:
        numbers = moe.n_experts_at.items()
        return next((n for at, n in numbers if path_matches(place.path, at)), moe.n_experts)

    def experts_of(place: Place, n_experts: int | None = None) -> Inventory:
        n_experts = n_experts or count(place)
        if upcycled and place.block is not None:
            return upcycle(place.block, n_experts)
        sizes = place.in_features, place.out_features
        made = make_experts(moe, *sizes, n_experts, block=place.block)
        if moe.parallel:
            check_shardable(made)
        return made

    def make_shared(place: Place) -> Inventory:
        experts = experts_of(place, 1)
        return silent(experts) if isinstance(experts, FeedForwardExperts) else experts

    def router_of(place: Place) -> TokenRouter:
        size = int(embeddings.weight.shape[0])
        return make_router(moe, place.in_features, count(place), vocabulary_size=size)

    with raised_as(ConfigError, "section moe", ValueError):
        blocks = kind.attachment_point == "block"
        chosen = {"blocks": blocks, "every": moe.every, "stacks": moe.stacks}
        places = expert_places(model, moe.targets, **chosen)
        for at in moe.n_experts_at:
            if not any(path_matches(place.path, at) for place in places):
                shown = ", ".join(place.path for place in places)
                raise ValueError(f"n_experts_at: '{at}' matches no layer with experts: {shown}")
        return attach_experts(
            model,
            places,
            experts_of,
            router_of,
            slot=slot,
            replace=upcycled,
            shared=make_shared if moe.shared_expert else None,
            capacity_factor=moe.capacity_factor,
            eval_capacity_factor=moe.eval_capacity_factor,
            prior=None if moe.task_prior == "none" else moe.task_prior,
            granularity=granularity,
            groups=groups,
        )


def make_experts(
    moe: AnyMoE, in_features: int, out_features: int, n_experts: int, **given: Any
) -> Inventory:
    """Return new experts of one layer; ValueError if tokens cannot choose them."""
    sizes = {"in_features": in_features, "out_features": out_features}
    made = moe.experts.make(**sizes, n_skills=n_experts, n_heads=1, **given)
    made.require_use("token")
    return made


def make_router(moe: AnyMoE, in_features: int, n_experts: int, **given: Any) -> TokenRouter:
    """Return a new token router of one layer; ValueError if it cannot be balanced as configured."""
    router, balance = moe.router, moe.balance
    given |= {"in_features": in_features, "n_experts": n_experts}
    if "rank" in getattr(router.part_class, "internal", ()):  # routers that read members
        given["rank"] = moe.experts.rank
    if balance.bias:
        given["bias"] = BiasBalance(n_experts, rate=balance.bias)
    if balance.load or balance.given:
        given["balance"] = Balance(**balance.model_dump(exclude={"bias"}))
        if "balance" not in {item.name for _, item in arguments(router.part_class)}:
            raise ValueError(
                f"the router '{router.kind}' takes no balance loss. Remove moe.balance, or "
                "add an argument `balance` to the constructor of the class"
            )
    return router.make(**given)
