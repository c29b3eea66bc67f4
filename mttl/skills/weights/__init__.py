"""Kinds of skills that change linear layers and norms."""
