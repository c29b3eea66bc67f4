"""Version of the package, available without importing it."""

VERSION = "0.1.0"
