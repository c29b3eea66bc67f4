"""ROUTING: which skills, for whom."""

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

__all__ = [
    "FixedRouter",
    "HyperFormerRouter",
    "PolytroponRouter",
    "Routing",
    "RoutingPrior",
    "RoutingSlot",
    "TaskMoERouter",
    "TaskRouter",
    "average_router",
    "check_task_ids",
    "expert_router",
    "negative_log_ibp",
    "private_router",
    "shared_router",
]
