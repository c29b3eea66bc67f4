"""The keys of a file of tasks, and what their values must be."""

from collections.abc import Mapping
from typing import Any, get_args

from mttl.io.errors import TaskError, nearest
from mttl.metrics.metric_names import METRIC_NAMES
from mttl.tasks.filters import TEXT_FILTERS, shown
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.task import Kind, References, Side

TEXT, TEXTS, NUMBER, MAPPING = "a text", "a list of texts", "a number", "a mapping"
ALL = "all"
COUNT = f"a whole number from 1 on, or '{ALL}'"

# What a value must be: one of the five above, or one of the names given.
TASK_KEYS: dict[str, Any] = {
    "source": MAPPING,
    "kind": get_args(Kind),
    "k": COUNT,
    "input": TEXT,
    "output": TEXT,
    "labels": TEXTS,
    "references": get_args(References),
    "rows": TEXT,
    "cleaning": tuple(TEXT_FILTERS),
    "prepare": tuple(FUNCTIONS),
    "metric": METRIC_NAMES,
    "category": TEXT,
    "description": TEXT,
    "side": get_args(Side),
}
SOURCE_KEYS: dict[str, Any] = {
    "path": TEXT,
    "config": TEXT,
    "revision": TEXT,
    "train": TEXT,
    "dev": TEXT,
    "test": TEXT,
    "holdout": MAPPING,
    "test_share": NUMBER,
    "columns": TEXTS,
    "mirrors": TEXTS,
    "unavailable": TEXT,
}
HOLDOUT_KEYS: dict[str, Any] = {"pool": NUMBER, "test_start": NUMBER, "test_end": NUMBER}


def check_keys(keys: Mapping[Any, Any], known: Mapping[str, Any], where: str) -> None:
    """Refuse a key that does not exist, and a value that is not what its key asks for.

    Raises:
        TaskError: If there is one.
    """
    for key, value in keys.items():
        if key not in known:
            raise TaskError(
                f"{where}: unknown key '{key}'.{nearest(str(key), known)} There are "
                f"{', '.join(known)}"
            )
        check(value, known[key], f"{where}: {key}")


def check(value: Any, expected: Any, what: str) -> None:
    """Refuse a value that is not what was expected.

    Raises:
        TaskError: If it is another.
    """
    if isinstance(expected, tuple):
        if value not in expected:
            raise TaskError(
                f"{what} is {shown(value)}; it must be one of {', '.join(expected)}."
                f"{nearest(str(value), expected)}"
            )
        return
    right = {
        TEXT: isinstance(value, str) and value != "",
        TEXTS: isinstance(value, list) and all(isinstance(item, str) for item in value),
        NUMBER: isinstance(value, int | float) and not isinstance(value, bool),
        COUNT: value == ALL or (type(value) is int and value > 0),
        MAPPING: isinstance(value, dict),
    }
    if not right[expected]:
        items = value if isinstance(value, list) else [value]
        scalar = expected in (TEXT, TEXTS) and any(isinstance(item, int | float) for item in items)
        quote = " (put numbers, true and false in quotes)" if scalar else ""
        raise TaskError(f"{what} is {shown(value)}; it must be {expected}{quote}")
