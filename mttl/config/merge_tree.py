"""Trees of settings: merged left to right, each value knowing where it came from."""

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]
Sources = dict[str, str]


def merge(
    tree: Tree, later: Mapping[str, Any], source: str, sources: Sources, prefix: str = ""
) -> Tree:
    """Return ``tree`` with the values of ``later`` on top.

    Mappings merge key by key. A mapping whose ``kind`` or ``model_type`` differs from the earlier
    one's replaces it: settings of one kind mean nothing to another. The kind itself stays where the
    later one names only another model type. An empty mapping inside a section empties it.

    Args:
        tree: Earlier values; not changed.
        later: Values that win.
        source: Where ``later`` comes from.
        sources: Receives the source of every dotted key.
        prefix: Where the two trees stand in a larger one, with a dot behind.
    """
    result = dict(tree)
    for key, value in later.items():
        name = f"{prefix}{key}"
        before = result.get(key)
        sources[name] = source
        if not isinstance(value, Mapping):
            result[key] = value
            continue
        emptied = bool(prefix) and not value
        if not isinstance(before, Mapping) or emptied or _changes_kind(before, value):
            kind = before.get("kind") if isinstance(before, Mapping) and not emptied else None
            before = {} if kind is None else {"kind": kind}
            for old in [known for known in sources if known.startswith(f"{name}.")]:
                if old.removeprefix(f"{name}.") not in before:
                    del sources[old]
        result[key] = merge(dict(before), value, source, sources, f"{name}.")
    return result


def _changes_kind(before: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    return any(
        name in later and name in before and later[name] != before[name]
        for name in ("kind", "model_type")
    )


def nested(dotted: str, value: Any) -> Tree:
    """Return ``{"a": {"b": value}}`` for ``"a.b"``."""
    tree: Any = value
    for part in reversed(dotted.split(".")):
        tree = {part: tree}
    return tree
