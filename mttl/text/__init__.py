"""The world of text-to-text tasks: what the commands do with its configurations."""
