"""INTERCHANGE: skills in the file formats of other tools, and back."""
