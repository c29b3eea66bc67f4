"""What `mttl plot` prints and reads of the routing of a run."""
