"""Three ways to split the grid into tasks to train on and tasks to generalise to.

A partition depends on the names of the tasks alone.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

N_TEST_CELLS = 32
N_DEV_CELLS = 12
# Of the tasks of a language, and of an operation, at least this share is trained.
TRAINED_SHARE = 0.6

HELD_LANGUAGES = {"test": ("pl", "fa", "th"), "dev": ("tr",)}
OPERATIONS_SEEN = ("date_long", "cardinal")

HELD_OPERATIONS = {"test": ("date_iso", "compact", "ordinal"), "dev": ("unit",)}
LANGUAGES_SEEN = ("en", "ja")

Partition = dict[str, list[str]]


class CellParts(NamedTuple):
    """What a task is made of."""

    language: str
    operation: str


def parts(name: str) -> CellParts:
    """Return the language and the operation that a name spells out."""
    language, _, operation = name.partition("_")
    return CellParts(language, operation)


def cells(names: Sequence[str]) -> Partition:
    """Hold single pairs out; their language and operation are trained in most other pairs.

    Pairs are taken in the order of a hash, unless too little would be left of one of their parts.
    """
    total = Counter(part for name in names for part in parts(name))
    left = total.copy()
    held: list[str] = []
    for name in sorted(names, key=_place):
        enough = all(left[part] - 1 >= TRAINED_SHARE * total[part] for part in parts(name))
        if enough and len(held) < N_TEST_CELLS + N_DEV_CELLS:
            held.append(name)
            left.subtract(parts(name))
    return _split(names, {"test": held[:N_TEST_CELLS], "dev": held[N_TEST_CELLS:]})


def language(names: Sequence[str]) -> Partition:
    """Hold languages out but for two operations."""
    return _split(names, _held(names, "language", HELD_LANGUAGES, OPERATIONS_SEEN))


def operation(names: Sequence[str]) -> Partition:
    """Hold operations out but for two languages."""
    return _split(names, _held(names, "operation", HELD_OPERATIONS, LANGUAGES_SEEN))


PARTITIONS = {"grid_cells": cells, "grid_language": language, "grid_operation": operation}


def _held(
    names: Sequence[str], part: str, held: Mapping[str, Sequence[str]], seen: Sequence[str]
) -> dict[str, list[str]]:
    return {
        side: [
            name
            for name in names
            if getattr(parts(name), part) in values and not set(parts(name)) & set(seen)
        ]
        for side, values in held.items()
    }


def _split(names: Sequence[str], held: Mapping[str, Iterable[str]]) -> Partition:
    """Return all three sides, each in the order of the table."""
    side = {name: which for which, chosen in held.items() for name in chosen}
    return {
        which: [name for name in names if side.get(name, "train") == which]
        for which in ("train", "dev", "test")
    }


def _place(name: str) -> bytes:
    return hashlib.sha256(f"cells/{name}".encode()).digest()
