"""Inference: generated answers, and options ranked by likelihood."""
