"""SERVING: tasks of a trained run behind OpenAI's protocols; their requests share batches."""
