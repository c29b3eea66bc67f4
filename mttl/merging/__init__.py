"""Merging models on disk by a recipe: the wiring between files, settings and arithmetic."""
