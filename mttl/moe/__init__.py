"""Token-level mixture of experts: tokens choose the modules that process them."""

from mttl.moe.dispatch import (
    Dispatch,
    capacity_of,
    combine,
    keep_pairs,
    sort_by_expert,
    within_capacity,
)
from mttl.moe.experts import Experts, FeedForwardExperts
from mttl.moe.grouped import grouped_linear
from mttl.moe.layer import MoELayer
from mttl.moe.lora import LoRAExperts

__all__ = [
    "Dispatch",
    "Experts",
    "FeedForwardExperts",
    "LoRAExperts",
    "MoELayer",
    "capacity_of",
    "combine",
    "grouped_linear",
    "keep_pairs",
    "sort_by_expert",
    "within_capacity",
]
