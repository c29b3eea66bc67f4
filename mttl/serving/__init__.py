"""Serving: tasks of a run over OpenAI's API, with batching of requests."""
