"""Comparison of methods on the same tasks and seeds: training, adaptation, scores, tables."""
