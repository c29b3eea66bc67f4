"""Several processes of one training: sharding, shared experts, a watchdog."""
