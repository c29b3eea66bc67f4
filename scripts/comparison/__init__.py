"""Parts of `scripts/compare.py`."""
