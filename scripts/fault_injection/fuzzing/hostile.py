"""Values that readers seldom see: of another type, huge, not finite, deep, or with a meaning."""

import math
import os
import random
from pathlib import Path
from typing import Any

NAMES = (
    "",
    " ",
    "\0",
    "a\x1b[31mb",
    "a\nb",
    "a\tb",
    "\u202eabc",
    "\ud800",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1",
    "-1",
    "<img onerror=alert(1) src=x>",
    "</script><script>alert(1)</script>",
    "../../etc/passwd",
    "a/b",
    "..",
    "x" * 300,
    "x" * 100_000,
    "(a+)+$",
    "[bold]",
    "[/]",
    "%s%n{0}",
    "é",
    "名前",
)
NUMBERS = (
    *(0, -1, 1, 2, 0.5, 7.0, 700, -0.0, 1e-300, 2**31, 2**63, 2**64, 10**30, 10**400),
    *(1e308, math.nan, math.inf, -math.inf, True, False),
)
# A pattern that backtracks for ever on any path of a layer.
PATTERNS = (
    "([a-zA-Z0-9_.]+)+!",
    "(.*)*x!",
    "(([a-z.])+.)+!",
    "(?=(.*)*!)",
    "(",
    "[",
    "a{999999999}",
)


class Payload:
    """Pickled, it runs a program when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        """Write a file that shows that code was run."""
        return os.system, (f"touch '{self.marker}'",)


def value(rng: random.Random) -> Any:
    """Return a value for a place in a tree."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(NAMES)
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind == 3:
        return None
    if kind == 4:
        return rng.choice(([], {}, [[]], {"": None}, [None], [{}], ["a", "a"]))
    if kind == 5:
        return nested(rng.choice((3, 60, 400)), rng)
    if kind == 6:
        return rng.choice(PATTERNS)
    return rng.choice(("yes", "~", "1e3", "0x10", "1_000", "12:30:45", "2020-01-01", "null"))


def nested(depth: int, rng: random.Random) -> Any:
    """Return lists, or mappings, inside one another."""
    inner: Any = 1
    as_list = rng.random() < 0.5
    for _ in range(depth):
        inner = [inner] if as_list else {"a": inner}
    return inner


def replaced(tree: Any, rng: random.Random) -> Any:
    """Return a tree with one node replaced, removed, doubled or renamed."""
    places = list(_places(tree))
    if not places:
        return value(rng)
    container, key = rng.choice(places)
    change = rng.randrange(6)
    if change <= 2:
        container[key] = value(rng)
    elif change == 3:
        del container[key]
    elif change == 4 and isinstance(container, dict):
        container[rng.choice(NAMES + PATTERNS)] = container[key]
    elif isinstance(container, list):
        container.insert(0, container[key])
    else:
        item = container.pop(key)
        container[rng.choice(NAMES + PATTERNS)] = item
    return tree


def _places(tree: Any) -> Any:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])
