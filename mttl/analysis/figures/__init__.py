"""Figures of the routing. Each function returns a Matplotlib figure and keeps no global state."""
