"""Damaged and hostile files, made from sound ones, and what the readers of the project do."""
