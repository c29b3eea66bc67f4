"""Figures of the routing. Each function returns a Matplotlib figure; no global state is touched."""
