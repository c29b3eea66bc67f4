"""What differs between two folders that the same command should have made."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

WEIGHTS = (".safetensors", ".ckpt", ".state")
# Times, and what depends on them.
VARIES = (".log", ".journal", "table.md", "table.csv")
# What a command cost, and a digest of absolute paths.
OWN = ("cpu_minutes", "peak_mib", "made_from")
# A working directory of the test, where a file names one.
_PLACE = re.compile(rb"/[^\s\"']*/(chains|undisturbed)/[^/\s\"']+")


def listed(folder: Path) -> set[str]:
    """Return all files and folders below one, without temporary files."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in paths if not any(p.endswith(".part") for p in path.parts)}


def differences(found: Path, expected: Path) -> tuple[list[str], list[str], list[str]]:
    """Return other weights, other results and leftovers: the paths, with what differs.

    Args:
        found: The folder after kills.
        expected: That of a run that nothing disturbed.
    """
    ours, theirs = listed(found), listed(expected)
    weights, results = [], []
    for name in sorted(theirs):
        if (expected / name).is_dir():
            if name not in ours:
                results.append(f"{name}/ is missing")
            continue
        change = "is missing" if name not in ours else _difference(found / name, expected / name)
        if change:
            (weights if name.endswith(WEIGHTS) else results).append(f"{name} {change}")
    return weights, results, sorted(ours - theirs)


def _difference(found: Path, expected: Path) -> str:
    if found.name.endswith(VARIES) or found.read_bytes() == expected.read_bytes():
        return ""
    try:
        first, second = _content(found), _content(expected)
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {error}"
    return _where(first, second, "")


def _content(path: Path) -> Any:
    if path.suffix in (".ckpt", ".state"):
        import torch

        # Written by the test itself.
        return torch.load(path, map_location="cpu", weights_only=False)
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".json":
        content = json.loads(_PLACE.sub(b"", path.read_bytes()))
        if isinstance(content, dict):
            if path.name == "meta.json":  # its sum is of facts that are compared, and of a place
                content.get("sha256", {}).pop("meta.json", None)
            return {key: value for key, value in content.items() if key not in OWN}
        return content
    return _PLACE.sub(b"", path.read_bytes())


def _where(first: Any, second: Any, place: str) -> str:
    """Return where two values differ first; empty if they do not."""
    if type(first) is not type(second):
        return f"differs at {place}: {first!r:.60} and not {second!r:.60}"
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return f"differs at {place}: {sorted(map(str, first.keys() ^ second.keys()))}"
        # What is pickled is pickled in another way after it was unpickled.
        pickled = {key for key in first if key == "environments" and type(first[key]) is bytes}
        keys = first.keys() - pickled
        pairs = [(f"{place}[{key}]", first[key], second[key]) for key in sorted(keys, key=str)]
    elif isinstance(first, list | tuple) and len(first) == len(second):
        pairs = [
            (f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))
        ]
    elif isinstance(first, np.ndarray) or _is_tensor(first):
        return "" if _equal(first, second) else f"differs at {place}: other numbers"
    else:
        same = first == second or (first != first and second != second)
        return "" if same else f"differs at {place}: {first!r:.60} and not {second!r:.60}"
    for inner, a, b in pairs:
        if found := _where(a, b, inner):
            return found
    return ""


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _equal(first: Any, second: Any) -> bool:
    if _is_tensor(first):
        first, second = (tensor.double().numpy() for tensor in (first.cpu(), second.cpu()))
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
