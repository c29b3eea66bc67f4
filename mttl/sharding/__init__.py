"""SHARDING: a model's tensors spread over the processes that train it, and whole again."""
