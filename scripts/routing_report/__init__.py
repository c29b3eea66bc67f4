"""What `plot_routing.py` reads of a run, and the tables that it prints."""
