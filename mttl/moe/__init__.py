# ruff: noqa: F401 - for users of the package
"""Token-level mixture of experts."""

from mttl.moe.layer import MoELayer
from mttl.moe.parallel import ParallelExperts, expert_slice
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts
