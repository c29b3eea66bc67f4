"""Checks that optional libraries are installed."""

import importlib.util

from mttl.errors import MttlError


def missing_libraries(*names: str) -> list[str]:
    """Return those of some libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_libraries(*names: str) -> None:
    """Check that optional libraries are installed.

    Args:
        names: Names of their packages.

    Raises:
        MttlError: If one is missing; the message says how to install it.
    """
    if missing := " ".join(missing_libraries(*names)):
        raise MttlError(f"{missing} must be installed: pip install {missing}")
