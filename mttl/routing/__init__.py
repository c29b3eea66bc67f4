"""ROUTING: which skills, for whom."""

from mttl.routing.balance import Balance, BiasBalance
from mttl.routing.context import Routing, RoutingSlot, check_task_ids
from mttl.routing.fixed import (
    FixedRouter,
    average_router,
    expert_router,
    private_router,
    shared_router,
)
from mttl.routing.hyperformer import HyperFormerRouter
from mttl.routing.polytropon import PolytroponRouter
from mttl.routing.priors import RoutingPrior, negative_log_ibp
from mttl.routing.task_moe import TaskMoERouter
from mttl.routing.task_router import TaskRouter
from mttl.routing.token import Assignment, TokenRouter
from mttl.routing.token_base import BaseRouter
from mttl.routing.token_example import ExampleRouter
from mttl.routing.token_expert_choice import ExpertChoiceRouter
from mttl.routing.token_gshard import GShardRouter
from mttl.routing.token_hash import HashRouter
from mttl.routing.token_noisy import NoisyTopKRouter
from mttl.routing.token_top_k import TopKRouter

__all__ = [
    "Assignment",
    "Balance",
    "BaseRouter",
    "BiasBalance",
    "ExampleRouter",
    "ExpertChoiceRouter",
    "FixedRouter",
    "GShardRouter",
    "HashRouter",
    "HyperFormerRouter",
    "NoisyTopKRouter",
    "PolytroponRouter",
    "Routing",
    "RoutingPrior",
    "RoutingSlot",
    "TaskMoERouter",
    "TaskRouter",
    "TokenRouter",
    "TopKRouter",
    "average_router",
    "check_task_ids",
    "expert_router",
    "negative_log_ibp",
    "private_router",
    "shared_router",
]
