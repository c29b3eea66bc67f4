"""What surrounds a command: console, signals, processes, GPUs, progress."""
