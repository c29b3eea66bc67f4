"""Data and tables of `mttl plot`."""
