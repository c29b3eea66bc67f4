"""Runtime support: console, signals, processes, GPUs, progress bars."""
