"""Batches of text-to-text tasks: encoding and its cache, samplers, collation, the data module."""
