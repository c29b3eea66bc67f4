"""Routers that read hidden states: every token chooses."""
