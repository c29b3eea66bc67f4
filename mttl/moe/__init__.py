"""Token-level mixture of experts: tokens choose the modules that process them."""

from mttl.aggregation.grouped import grouped_linear
from mttl.moe.layer import MoELayer
from mttl.moe.parallel import ParallelExperts, expert_slice
from mttl.routing.token.dispatch import (
    Dispatch,
    capacity_of,
    combine,
    gate_matrix,
    keep_pairs,
    sort_by_expert,
    within_capacity,
)
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts

__all__ = [
    "Dispatch",
    "FeedForwardExperts",
    "MoELayer",
    "ParallelExperts",
    "capacity_of",
    "combine",
    "expert_slice",
    "gate_matrix",
    "grouped_linear",
    "keep_pairs",
    "sort_by_expert",
    "within_capacity",
]
