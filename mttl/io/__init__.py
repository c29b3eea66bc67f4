"""Reading and atomic writing of files: text, JSON, YAML and tensors."""
