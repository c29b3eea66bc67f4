"""Plan the memory of a run without loading weights."""
