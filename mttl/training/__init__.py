"""TRAINING: the Lightning modules, their callbacks, and the files of a run."""
