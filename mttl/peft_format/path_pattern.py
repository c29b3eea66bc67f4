"""Patterns of layers' paths in a PEFT file: regular expressions, which can run for ever.

PEFT matches them with Python's `re`, whose time can double with every character. Those of people
are names, a few wildcards and alternatives; what repeats a repetition, or repeats too often, is
refused and not matched.
"""

import re
from collections.abc import Mapping
from typing import Any

from mttl.io.reading import reason, shown

MOST_CHARACTERS, MOST_REPEATS = 1000, 3
# A path of a layer is far shorter, and the time grows with a power of it.
MOST_PATH = 300
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")


def first_match(patterns: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """Return the value of the first pattern that matches the end of a path.

    Raises:
        ValueError: If a pattern is none, or could take for ever.
    """
    for pattern, value in patterns.items():
        check_pattern(pattern)
        if len(path) <= MOST_PATH and re.match(rf"(.*\.)?({pattern})$", path):
            return value
    return otherwise


def check_pattern(pattern: str) -> None:
    """Refuse a regular expression that could take for ever.

    Raises:
        ValueError: If it is malformed, too long, repeats a group, looks around, refers back, or
            repeats too often.
    """
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"\\.", "x", pattern))  # without classes
    repeats = _REPEAT.findall(plain)
    if (
        len(pattern) > MOST_CHARACTERS
        or len(repeats) > MOST_REPEATS
        or re.search(r"\)(?:[*+]|\{)", plain)
        or re.search(r"\(\?(?!:)", plain)
        or re.search(r"\\\d", pattern)
        or re.search(r"\{\d*\d{4}", plain)
    ):
        raise ValueError(
            f"the pattern {shown(pattern)} could take for ever: it may have {MOST_CHARACTERS} "
            f"characters and {MOST_REPEATS} repetitions, none of a group; name the layers instead"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{shown(pattern)} is no pattern: {reason(error)}") from error
