"""AGGREGATION: how the chosen skills combine."""

from mttl.aggregation.mix import mix_blocks, mix_deltas, mix_factors, mix_outputs

__all__ = ["mix_blocks", "mix_deltas", "mix_factors", "mix_outputs"]
