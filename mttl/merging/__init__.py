"""Merging of models on disk by a recipe."""
