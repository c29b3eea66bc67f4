"""What the router learned. Figures and the page are imported by name: they need libraries."""

from mttl.analysis.statistics import active_cells, discreteness, effective_skills, usage

__all__ = ["active_cells", "discreteness", "effective_skills", "usage"]
