"""Skills at the input: prefixes of keys and values, and prompts before the embedded text."""
