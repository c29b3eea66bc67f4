"""Pieces of scripts/forgetting.py."""
