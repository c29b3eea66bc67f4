"""What works with what: every shipped file with every command, from what the tests expect."""

from matrix.expected import AFTER, BACKBONES, COLUMNS, files, reason

HEAD = """\
# What works with what

Every shipped file with every command. `yes`: a test runs the command on a small T5 and a small
Llama, and compares what it wrote. A number: the command ends with status 2 and this reason.
`-`: there is no run. *export* is `mttl export --task`, *inventory* `mttl export --inventory`.
Files of `experts` stand behind `router/token_top2.yaml`, all others behind LoRA and Polytropon.

This page is generated from the features that parts lack (`mttl/config/capabilities.py`) and from
what the tests expect (`python -m pytest -m matrix`).
"""


def combinations_page() -> str:
    """Return the page."""
    reasons: dict[str, int] = {}
    lines = [f"| file | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for file in files():
        row = []
        for column in COLUMNS:
            cells = [_cell(reason(file, name, column), reasons) for name in BACKBONES]
            same = cells[0] == cells[1]
            row.append(cells[0] if same else f"T5: {cells[0]}, Llama: {cells[1]}")
        lines.append(f"| `{file}` | {' | '.join(row)} |")
    notes = [f"{number}. {text}" for text, number in reasons.items()]
    return "\n".join([HEAD, *lines, "", *notes, ""])


def _cell(told: str | None, reasons: dict[str, int]) -> str:
    if told is None:
        return "yes"
    return "-" if told == AFTER else str(reasons.setdefault(told, len(reasons) + 1))
