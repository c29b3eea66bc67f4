"""Tasks: templates, few-shot samples, and a gym on disk."""
