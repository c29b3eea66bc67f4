"""Training: Lightning modules, callbacks, and the files of a run."""
