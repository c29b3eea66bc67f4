# ruff: noqa: F401 - for users of the package
"""AGGREGATION: functions that combine skills, experts and models."""

from mttl.aggregation.mix import mix_blocks, mix_deltas, mix_factors, mix_outputs
