"""Processes of one training: they end together, and may share experts out."""
