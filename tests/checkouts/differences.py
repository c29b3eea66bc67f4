"""The files of two folders, compared bit for bit: which differ, where, and by how much.

Two runs of the same code with the same libraries leave the same files, so nothing is exempt: run
folders hold no time of day, no duration, and no path but the one of the folder they lie in.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from mttl.io import yaml12


@dataclass(frozen=True)
class Difference:
    """One place in one file."""

    file: str
    place: str  # the tensor, the column and row, or the key; empty for a whole file
    what: str  # that is different there


def compare_folders(
    before: Path, after: Path, parts: tuple[str, ...]
) -> dict[str, list[Difference]]:
    """Return the differences of every file in parts of two folders, by its path.

    Each folder's own path, where a text names it, counts as the same.
    """
    files = {
        str(path.relative_to(root))
        for root in (before, after)
        for part in parts
        for path in (root / part).rglob("*")
        if path.is_file()
    }
    return {file: list(_compare_files(before, after, file)) for file in sorted(files)}


def _compare_files(before: Path, after: Path, file: str) -> Iterator[Difference]:
    missing = [
        name for name, root in (("before", before), ("after", after)) if not (root / file).is_file()
    ]
    if missing:
        yield Difference(file, "", f"missing {missing[0]}")
        return
    if _bytes(before, file) == _bytes(after, file):
        return
    ours, theirs = (_read(root / file, str(root)) for root in (before, after))
    differing = {
        place: what
        for place in ours.keys() | theirs.keys()
        if (what := _difference(ours, theirs, place))
    }
    if not differing and (before / file).suffix not in BINARY:
        yield Difference(file, "", "the same values, written in another form")
    for place, what in sorted(differing.items()):
        yield Difference(file, place, what)


def _bytes(root: Path, file: str) -> bytes:
    return (root / file).read_bytes().replace(str(root).encode(), b"")


def _difference(ours: dict[str, Any], theirs: dict[str, Any], place: str) -> str:
    """Say how the values of a place differ; nothing if they are the same bit for bit."""
    if place not in ours or place not in theirs:
        return f"missing {'after' if place in ours else 'before'}"
    one, other = ours[place], theirs[place]
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return "" if repr(one) == repr(other) else f"{one!r:.80} before, {other!r:.80} after"
    kinds = [f"{value.dtype} of shape {tuple(value.shape)}" for value in (one, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} before, {kinds[1]} after"
    if torch.equal(*(value.reshape(-1).view(torch.uint8) for value in (one, other))):
        return ""
    return f"largest difference {float((one.double() - other.double()).abs().max()):.3g}"


def _read(path: Path, root: str) -> dict[str, Any]:
    """Return what a file holds, by place."""
    match path.suffix:
        case ".safetensors":
            return dict(load_file(path))
        case ".npz":
            return {name: _array(value) for name, value in np.load(path).items()}
        case ".ckpt":
            leaves = _leaves(torch.load(path, map_location="cpu", weights_only=False))
            return {_without(root, place): _without(root, value) for place, value in leaves}
    text = _without(root, path.read_text(encoding="utf-8"))
    match path.suffix:
        case ".csv":
            rows = enumerate(csv.DictReader(text.splitlines()), start=1)
            return {f"{name}, row {n}": value for n, row in rows for name, value in row.items()}
        case ".json":
            return dict(_leaves(json.loads(text)))
        case ".jsonl":
            return dict(_leaves([json.loads(line) for line in text.splitlines()]))
        case ".yaml":
            return dict(_leaves(yaml12.parse(text)))
    return {"": text}


def _without(root: str, value: Any) -> Any:
    return value.replace(root, "") if isinstance(value, str) else value


def _array(value: np.ndarray) -> Any:
    return torch.from_numpy(value) if value.dtype.kind in "fiub" else value.tolist()


def _leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, list | tuple) and tree:
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{place}[{number}]")
    elif isinstance(tree, np.ndarray):
        yield place, _array(tree)
    else:
        yield place, tree


BINARY = {".safetensors", ".npz", ".ckpt"}
