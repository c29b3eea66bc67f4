"""Configuration: schemas of all settings, loading, merging and validation."""
