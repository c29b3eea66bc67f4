"""Console, signals, processes, GPUs, progress bars."""
