"""Configuration: what can be set, how it is read, and what it builds."""
