"""Token-level mixture of experts: tokens choose the modules that process them."""

from mttl.aggregation.grouped import grouped_linear
from mttl.moe.adapter import AdapterExperts
from mttl.moe.experts import Experts, FeedForwardExperts
from mttl.moe.ia3 import IA3Experts
from mttl.moe.layer import MoELayer
from mttl.moe.lora import LoRAExperts
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

__all__ = [
    "AdapterExperts",
    "Dispatch",
    "Experts",
    "FeedForwardExperts",
    "IA3Experts",
    "LoRAExperts",
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
