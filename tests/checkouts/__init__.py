"""Two checkouts of this repository, run alike and compared: the parts of compare_checkouts.py."""
