"""Skills at the input: prefixes of keys and values, and prompts in front of the text."""
