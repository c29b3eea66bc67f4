"""TRAINING: the Lightning modules and what runs beside their steps."""
