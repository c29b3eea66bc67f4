"""ROUTING: which examples use which skills, and which tokens which experts."""

from mttl.routing.context import Routing, RoutingSlot, check_task_ids
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.categorical import CategoricalRouter, ScoreFunctionRouter
from mttl.routing.task.fixed import (
    AverageRouter,
    CoefficientRouter,
    FixedRouter,
    PrivateRouter,
    RandomRouter,
    SharedRouter,
    expert_router,
)
from mttl.routing.task.hyperformer import HyperFormerRouter
from mttl.routing.task.metadata import MetadataRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.priors import IBP, RoutingPrior, negative_log_ibp
from mttl.routing.task.prompt_router import RetrievalRouter, SmearRouter
from mttl.routing.task.task_moe import TaskMoERouter
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.base import BaseRouter
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.expert_choice import ExpertChoiceRouter
from mttl.routing.token.hash import HashRouter
from mttl.routing.token.members import ArrowRouter, PhatgooseRouter, SpectralRouter
from mttl.routing.token.token_router import TokenRouter
from mttl.routing.token.top_k import ExampleRouter, GShardRouter, NoisyTopKRouter, TopKRouter

__all__ = [
    "IBP",
    "ArrowRouter",
    "Assignment",
    "AverageRouter",
    "Balance",
    "BaseRouter",
    "BiasBalance",
    "CPolyRouter",
    "CategoricalRouter",
    "CoefficientRouter",
    "ExampleRouter",
    "ExpertChoiceRouter",
    "FixedRouter",
    "GShardRouter",
    "HashRouter",
    "HyperFormerRouter",
    "MetadataRouter",
    "NoisyTopKRouter",
    "PhatgooseRouter",
    "PolytroponRouter",
    "PrivateRouter",
    "RandomRouter",
    "RetrievalRouter",
    "Routing",
    "RoutingPrior",
    "RoutingSlot",
    "ScoreFunctionRouter",
    "SharedRouter",
    "SmearRouter",
    "SpectralRouter",
    "TaskMoERouter",
    "TaskRouter",
    "TokenRouter",
    "Tokens",
    "TopKRouter",
    "check_task_ids",
    "expert_router",
    "negative_log_ibp",
]
