"""Everything that saves and loads a run."""
