"""Checkpoints of a run: written whole, the last one and the best, and put back."""
