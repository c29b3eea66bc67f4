"""A run that one can look around in: one page for a browser, offline, all of it inside."""
