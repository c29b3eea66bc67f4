"""The version of the package, apart from the package: the commands tell it without any import."""

VERSION = "0.1.0"
