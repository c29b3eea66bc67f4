"""Files that are read and written: text, JSON, YAML, tensors; each whole or not at all."""
