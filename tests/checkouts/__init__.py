"""The parts of compare_checkouts.py: run two checkouts with the same commands, and compare them."""
