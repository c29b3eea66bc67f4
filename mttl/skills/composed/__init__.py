"""Skills of all parameters of a small network, composed for each task."""
