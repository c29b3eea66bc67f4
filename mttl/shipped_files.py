"""Where the files lie that come with the package: configurations, small data, and the commands."""

from pathlib import Path


def shipped_folder() -> Path:
    """Return the folder of ``configs/``, ``data/``, ``scripts/`` and the commands beside them.

    A wheel holds them inside the package, a checkout beside it; `setup.py` makes the difference.
    """
    package = Path(__file__).parent
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent
