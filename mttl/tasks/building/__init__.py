"""Build a gym: read records, convert them to lines, and write few-shot files."""
