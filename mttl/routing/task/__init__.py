"""Routers that read the task."""
