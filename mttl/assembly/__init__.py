"""From a validated configuration to a model, and the plan of its memory."""
