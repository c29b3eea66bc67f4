# ruff: noqa: F401 - for users of the package
"""ROUTING: routers that choose skills for tasks, and experts for tokens."""

from mttl.routing.context import Routing, RoutingSlot, check_task_ids
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.categorical import CategoricalRouter, ScoreFunctionRouter
from mttl.routing.task.fixed import (
    AverageRouter,
    CoefficientRouter,
    ExpertRouter,
    FixedRouter,
    PrivateRouter,
    RandomRouter,
    SharedRouter,
)
from mttl.routing.task.hyperformer import HyperFormerRouter
from mttl.routing.task.metadata import MetadataRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.priors import IBP, RoutingPrior, negative_log_ibp
from mttl.routing.task.prompt_router import RetrievalRouter, SmearRouter
from mttl.routing.task.task_moe import TaskMoERouter
from mttl.routing.task.task_router import TaskRouter, TaskRows
from mttl.routing.task.xlora import XLoRARouter
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.base import BaseRouter
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.expert_choice import ExpertChoiceRouter
from mttl.routing.token.hash import HashRouter
from mttl.routing.token.members import ArrowRouter, PhatgooseRouter, SpectralRouter
from mttl.routing.token.token_router import TokenRouter
from mttl.routing.token.top_k import ExampleRouter, GShardRouter, NoisyTopKRouter, TopKRouter
