"""Tasks: definitions, templates, few-shot samples, and folders of task files (gyms)."""
