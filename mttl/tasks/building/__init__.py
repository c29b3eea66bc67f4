"""Building a gym: where records are, how they become lines, and the few-shot files."""
