"""The commands of ``mttl``: a file each, with its options and what it does."""
