"""From the section ``moe`` to layers on a backbone; the dictionary registers the routers."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel

from mttl.config.moe_schema import BLOCK_EXPERTS, LoRAExperts, MoE
from mttl.config.plugin_section import PluginSection
from mttl.io.errors import ConfigError
from mttl.moe.attach_experts import Place, Selection, TokenLayers, attach_experts
from mttl.moe.expert_parallel import check_shardable
from mttl.moe.upcycle import silent, upcycle
from mttl.plugins.classes import parameters
from mttl.routing.context import RoutingSlot
from mttl.routing.token.arrow import ArrowRouter
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.base import BaseRouter
from mttl.routing.token.example import ExampleRouter
from mttl.routing.token.expert_choice import ExpertChoiceRouter
from mttl.routing.token.gshard import GShardRouter
from mttl.routing.token.hash import HashRouter
from mttl.routing.token.noisy_top_k import NoisyTopKRouter
from mttl.routing.token.phatgoose import PhatgooseRouter
from mttl.routing.token.spectral import SpectralRouter
from mttl.routing.token.token_router import TokenRouter
from mttl.routing.token.top_k import TopKRouter
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import KINDS

TOKEN_ROUTERS: dict[str, Callable[..., TokenRouter]] = {
    "top_k": TopKRouter,
    "switch": TopKRouter,
    "noisy_top_k": NoisyTopKRouter,
    "gshard": GShardRouter,
    "expert_choice": ExpertChoiceRouter,
    "base": BaseRouter,
    "hash": HashRouter,
    "example": ExampleRouter,
    "arrow": ArrowRouter,
    "spectral": SpectralRouter,
    "phatgoose": PhatgooseRouter,
}
# Settings that are not of a router but of its training.
GATE_TRAINING = ("gate_steps", "gate_lr")


def build_experts(
    model: PreTrainedModel,
    moe: MoE,
    *,
    slot: RoutingSlot,
    granularity: str,
    groups: Sequence[str],
) -> TokenLayers:
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
    kind, balance = moe.router.kind, moe.balance
    settings: dict[str, Any] = moe.router.model_dump(exclude={"kind", *GATE_TRAINING})
    own = moe.router if isinstance(moe.router, PluginSection) else None
    if own is not None:
        settings = {"vocabulary_size": vocabulary_size}
    if kind == "switch":
        settings |= {"top_k": 1, "normalise": False}
    if kind == "hash":
        settings["vocabulary_size"] = vocabulary_size
    if kind == "spectral":
        assert isinstance(moe.experts, LoRAExperts)
        settings["rank"] = moe.experts.rank
    if balance.bias:
        settings["bias"] = BiasBalance(moe.n_experts, rate=balance.bias)
    losses = balance.model_dump(exclude={"bias"})
    if any(value for name, value in losses.items() if name != "global_statistics"):
        settings["balance"] = Balance(**losses)
    if own is not None:
        lacking = sorted(
            {"balance", "bias"} & settings.keys() - parameters(own.plugin_class).keys()
        )
        if lacking:
            raise ConfigError(f"moe.balance: '{kind}' takes no argument '{lacking[0]}' for it")
        return own.make(in_features=in_features, n_experts=moe.n_experts, **settings)
    return TOKEN_ROUTERS[kind](in_features, moe.n_experts, **settings)
