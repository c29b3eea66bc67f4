"""The folder of shipped configurations and small data."""

from pathlib import Path


def shipped_folder() -> Path:
    """Return the folder of ``configs/`` and ``data/``: in a wheel the package, else above it."""
    package = Path(__file__).parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent
