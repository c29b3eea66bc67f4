"""Methods compared on the same tasks and seeds: trainings, adaptations, scores, tables."""
