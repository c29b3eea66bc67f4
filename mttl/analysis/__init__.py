"""What the router learned. Figures and the page are imported by name: they need libraries."""

from mttl.analysis.statistics import discreteness, effective_skills, sparsity, usage

__all__ = ["discreteness", "effective_skills", "sparsity", "usage"]
