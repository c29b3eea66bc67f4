"""Some libraries are optional: see that they are there before work begins."""

import importlib.util

from mttl.errors import MttlError


def missing_libraries(*names: str) -> list[str]:
    """Return those of some libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_libraries(*names: str, extra: str = "plots") -> None:
    """See that libraries of an extra are installed.

    Args:
        names: Names to import.
        extra: That brings them.

    Raises:
        MttlError: If one is missing; the message says how to get it.
    """
    missing = missing_libraries(*names)
    if missing:
        raise MttlError(f"{', '.join(missing)} must be installed: pip install 'mttl[{extra}]'")
