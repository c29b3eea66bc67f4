"""CrossFit's gym: what a task is, its templates and few-shot samples, and the gym on disk."""
