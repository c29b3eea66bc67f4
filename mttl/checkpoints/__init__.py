"""Saving and loading of runs."""
