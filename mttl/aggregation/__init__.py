# ruff: noqa: F401 - for users of the package
"""AGGREGATION: how the chosen skills combine."""

from mttl.aggregation.mix import mix_blocks, mix_deltas, mix_factors, mix_outputs
