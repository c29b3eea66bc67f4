"""Parts of kill.py, which kills commands."""
