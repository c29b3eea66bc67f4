"""Adaptation of a trained inventory to new tasks from a few examples."""
