"""Sparse skills alone: chosen entries of any model, trained, stored and added."""
