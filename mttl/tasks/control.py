"""Codes of a controlled task: bins of answers' scores by metrics of their rows.

References:
    Rashkin, Reitter, Tomar and Das, *Increasing Faithfulness in Knowledge-Grounded Dialogue with
    Controllable Features*, ACL 2021, arXiv:2107.06963.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mttl.io.errors import TaskError
from mttl.io.files import write_text
from mttl.io.reading import parse_json, read_json, shown

CONTROL = "control"  # column of codes by metric, such as {"knowledge_f1": 3}
# By metric, without its settings; codes may be JSON.
Edges = Mapping[str, Sequence[float]]
Codes = Mapping[str, int] | str


def code_text(edges: Edges, given: Codes | None = None) -> str:
    """Return the text of codes before an input, such as ``[knowledge_f1 3]`` and a blank.

    ``given`` has codes by metric; others are the highest. Raises a `TaskError` if it has another
    metric, or a code that is not a bin.
    """
    codes = parse_json(given, CONTROL, TaskError) if given and isinstance(given, str) else given
    codes, most = codes or {}, {name: len(own) + 1 for name, own in edges.items()}
    if (
        not isinstance(codes, Mapping)
        or not codes.keys() <= most.keys()
        or any(type(code) is not int or not 1 <= code <= most[n] for n, code in codes.items())
    ):
        allowed = " and ".join(f"{name} from 1 to {n}" for name, n in most.items())
        allowed += f": {json.dumps(most)}" if most else "nothing: the task has no codes; remove it"
        raise TaskError(f"{CONTROL} ({shown(given)}) may have {allowed}")
    return "".join(f"[{name} {codes.get(name, n)}] " for name, n in most.items())


def read_edges(folder: Path) -> dict[str, list[float]]:
    """Return the edges in a task's folder; empty without any."""
    path = folder / f"{CONTROL}.json"
    return read_json(path, TaskError, dict) if path.is_file() else {}


def write_edges(folder: Path, edges: Edges) -> None:
    """Write edges into a task's folder."""
    write_text(folder / f"{CONTROL}.json", json.dumps(edges) + "\n")
