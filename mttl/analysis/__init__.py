"""What the router learned."""

from mttl.analysis.statistics import discreteness, sparsity, usage

__all__ = ["discreteness", "sparsity", "usage"]
