"""Batches of text-to-text tasks: encoding, caching, sampling, collation and the data module."""
