"""What a task is: its metric, its category, and what trivial answers score."""
