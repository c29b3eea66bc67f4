"""Where the inventory of a run lies."""

import os
from collections.abc import Sequence
from pathlib import Path

from mttl.io.errors import CheckpointError, ConfigError


def inventory_folder(folder: str | Path) -> Path:
    """Return the folder ``skills/`` with a trained inventory.

    Args:
        folder: That folder, or the run folder around it.

    Raises:
        CheckpointError: If it is neither.
    """
    found = find_inventory(Path(folder))
    if found is not None:
        return found
    raise CheckpointError(
        f"'{folder}' holds no trained inventory: it has no meta.json, nor a folder skills/ with "
        "one. Give the folder of a run that has ended; --resume finishes an interrupted one"
    )


def find_inventory(*places: Path) -> Path | None:
    """Return the folder ``skills/`` in the first of some places that has one."""
    candidates = (path for place in places for path in (place / "skills", place))
    return next((path for path in candidates if os.path.lexists(path / "meta.json")), None)


def check_named(source: str | None, adapted: Sequence[str]) -> None:
    """Check that a command that answers was given trained inventories.

    Args:
        source: The folder of a run.
        adapted: Folders of tasks that were adapted from it.

    Raises:
        ConfigError: If nothing is named.
        CheckpointError: If a folder holds no inventory.
    """
    if source is None and not adapted:
        raise ConfigError("name a run with --from RUN, or an adapted task with --adapted DIR")
    for folder in (source, *adapted):
        if folder is not None:
            inventory_folder(folder)
