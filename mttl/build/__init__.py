"""From a validated configuration to a model: one assembly."""
