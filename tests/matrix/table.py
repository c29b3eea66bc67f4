"""Write docs/what_works_with_what.md: `python tests/matrix/table.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.expected import AFTER, reasons
from matrix.toy import BACKBONES, COLUMNS, files

PAGE = Path(__file__).parents[2] / "docs" / "what_works_with_what.md"
HEAD = """\
# What works with what

Every shipped file with every command. `yes`: a test runs the command on a small T5 and a small
Llama, and compares what it wrote. A number: the command ends with status 2 and this reason.
`-`: there is no run. *export* is `mttl export --task`, *inventory* `mttl export --inventory`.
Files of `experts` stand behind `router/token_top2.yaml`, all others behind LoRA and Polytropon.

This page is made by `python tests/matrix/table.py` from the features that parts lack
(`mttl/config/capabilities.py`) and from what the tests expect (`python -m pytest -m matrix`).
"""


def page() -> str:
    """Return the page."""
    notes: dict[str, int] = {}
    lines = [f"| file | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for file in files():
        row = []
        for column in COLUMNS:
            cells = [_cell(reasons((file,), name, column), notes) for name in BACKBONES]
            same = cells[0] == cells[1]
            row.append(cells[0] if same else f"T5: {cells[0]}, Llama: {cells[1]}")
        lines.append(f"| `{file}` | {' | '.join(row)} |")
    numbered = [f"{number}. {text}" for text, number in notes.items()]
    return "\n".join([HEAD, *lines, "", *numbered, ""])


def _cell(found: list[str], notes: dict[str, int]) -> str:
    if not found:
        return "yes"
    return "-" if found[0] == AFTER else str(notes.setdefault(found[0], len(notes) + 1))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
