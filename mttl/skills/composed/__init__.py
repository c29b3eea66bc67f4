"""Skills of all parameters of a small network, which are composed for each task."""
