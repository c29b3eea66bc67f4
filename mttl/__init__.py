"""Modular multi-task learning: an inventory of skills, and a router that learns who uses them.

Four rooms, after the survey *Modular Deep Learning* (Pfeiffer, Ruder, Vulić and Ponti, TMLR 2023,
arXiv:2302.11529): `mttl.skills` (what one skill computes), `mttl.routing` (which skills, for whom),
`mttl.aggregation` (how the chosen ones combine) and `mttl.training`.
"""

__version__ = "0.1.0"
