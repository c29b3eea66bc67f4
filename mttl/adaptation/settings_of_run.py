"""What adaptation takes from the run that it adapts, whatever its configuration says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mttl.checkpoint import read_inventory
from mttl.config.section import Section
from mttl.errors import ConfigError

SECTIONS = ("backbone", "policy", "skills", "router", "moe", "aggregation")
_ABSENT = object()


def check_overrides(run: str | Path, config: Section, overrides: Sequence[str]) -> None:
    """Refuse settings of a command line that the run has otherwise, and that would change nothing.

    Args:
        run: The folder of the trained run.
        config: The configuration, with the settings of the command line.
        overrides: These, as ``section.key=value``.

    Raises:
        CheckpointError: If the folder holds no trained run.
        ConfigError: If one of them is of a section that is the run's, and differs from it.
    """
    names = [text.partition("=")[0] for text in overrides]
    names = [name for name in names if name.partition(".")[0] in SECTIONS]
    if not names:
        return
    wanted, trained = config.model_dump(mode="json"), read_inventory(run).meta["settings"]
    for name in names:
        here, there = _value(wanted, name), _value(trained, name)
        if here != there:
            has = "has no such setting" if there is _ABSENT else f"was trained with {there!r}"
            advice = "Leave it out"
            if name == "backbone.name":
                advice = "Leave it out; a backbone that has moved is named by --backbone DIR"
            raise ConfigError(
                f"'{name}' ({here!r}) cannot be set in adaptation: the run '{run}' {has}. {advice}"
            )


def _value(tree: Any, name: str) -> Any:
    for key in name.split("."):
        tree = tree.get(key, _ABSENT) if isinstance(tree, dict) else _ABSENT
    return tree
