"""Folders ``skills/`` that a test has changed, with checksums that fit them again."""

import json
from pathlib import Path

from mttl.checkpoints.inventory_files import CHECKSUMS, checksums


def note_again(skills: Path) -> None:
    """Write the checksums of what the folder holds now."""
    path = skills / "meta.json"
    meta = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(meta | {CHECKSUMS: checksums(skills, meta)}), "utf-8")
