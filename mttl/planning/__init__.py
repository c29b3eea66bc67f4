"""PLANNING: how much memory a run takes, before anything is loaded."""
