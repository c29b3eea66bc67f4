"""Where the inventory of a run lies."""

import os
from pathlib import Path

from mttl.errors import CheckpointError


def inventory_folder(folder: str | Path) -> Path:
    """Return the folder ``skills/`` with a trained inventory.

    Args:
        folder: That folder, or the run folder around it.

    Raises:
        CheckpointError: If it is neither.
    """
    for path in (Path(folder) / "skills", Path(folder)):
        if os.path.lexists(path / "meta.json"):
            return path
    raise CheckpointError(
        f"'{folder}' holds no trained inventory: it has no meta.json, nor a folder skills/ with "
        "one. Give the folder of a run that has ended"
    )
