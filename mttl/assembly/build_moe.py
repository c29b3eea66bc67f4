"""From the section ``moe`` to layers on a backbone."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from mttl.config.moe_schema import BLOCK_EXPERTS, MoE
from mttl.config.plugin_section import PluginSection
from mttl.io.errors import ConfigError
from mttl.moe.attach_experts import Place, Selection, attach_experts
from mttl.moe.expert_parallel import check_shardable
from mttl.moe.upcycle import silent, upcycle
from mttl.plugins.classes import parameters
from mttl.routing.context import RoutingSlot
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.token_router import TokenRouter
from mttl.skills.attach import Attachment
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import KINDS


def build_experts(
    model: PreTrainedModel,
    moe: MoE,
    *,
    slot: RoutingSlot,
    granularity: str,
    groups: Sequence[str],
) -> Attachment:
    """Put the experts of the section on a backbone."""
    embeddings: Any = model.get_input_embeddings()
    vocabulary_size = int(embeddings.weight.shape[0])

    def make_experts(place: Place, n_experts: int) -> Inventory:
        if place.block is not None and moe.experts.kind == "feed_forward":
            return upcycle(place.block, n_experts)
        sizes = place.in_features, place.out_features
        if isinstance(moe.experts, PluginSection):
            own = {"in_features": sizes[0], "out_features": sizes[1], "n_skills": n_experts}
            made = moe.experts.make(**own, n_heads=1)
            made.require_use("token")
            if moe.parallel:
                check_shardable(made)
            return made
        settings = moe.experts.model_dump(exclude={"kind"})
        return KINDS[moe.experts.kind](*sizes, n_experts, **settings)

    def make_shared(place: Place) -> Inventory:
        experts = make_experts(place, 1)
        return silent(experts) if isinstance(experts, FeedForwardExperts) else experts

    def make_router(place: Place) -> TokenRouter:
        return build_token_router(moe, place.in_features, vocabulary_size)

    try:
        return attach_experts(
            model,
            make_experts,
            make_router,
            selection=Selection(
                moe.experts.kind in BLOCK_EXPERTS, moe.targets, moe.every, moe.stacks
            ),
            slot=slot,
            n_experts=moe.n_experts,
            replace=moe.experts.kind == "feed_forward",
            shared=make_shared if moe.shared_expert else None,
            capacity_factor=moe.capacity_factor,
            eval_capacity_factor=moe.eval_capacity_factor,
            prior=None if moe.task_prior == "none" else moe.task_prior,
            granularity=granularity,
            groups=groups,
        )
    except ValueError as error:
        raise ConfigError(f"section moe: {error}") from error


def build_token_router(moe: MoE, in_features: int, vocabulary_size: int) -> TokenRouter:
    """Build the router of one layer."""
    router, balance = moe.router, moe.balance
    given: dict[str, Any] = {
        "in_features": in_features,
        "n_experts": moe.n_experts,
        "vocabulary_size": vocabulary_size,
    }
    if not isinstance(router, PluginSection):
        given["rank"] = getattr(moe.experts, "rank", None)  # what reads members needs theirs
    kept: dict[str, Any] = {}
    if balance.bias:
        kept["bias"] = BiasBalance(moe.n_experts, rate=balance.bias)
    losses = balance.model_dump(exclude={"bias"})
    if any(value for name, value in losses.items() if name != "global_statistics"):
        kept["balance"] = Balance(**losses)
    if lacking := sorted(kept.keys() - parameters(router.part_class).keys()):
        raise ConfigError(f"moe.balance: '{router.kind}' takes no argument '{lacking[0]}' for it")
    return router.make(**given, **kept)
