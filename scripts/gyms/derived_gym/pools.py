"""Sort the examples of a task into the splits of what they are about."""

from collections.abc import Iterable

from derived_gym.item import Item
from derived_gym.split import SHARES, split_of


def pools(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Merge items of equal input, and sort them into the splits of their keys.

    Items whose keys lie in several splits are left out.
    """
    by_input: dict[str, list[Item]] = {}
    for item in items:
        by_input.setdefault(item.input, []).append(item)
    found: dict[str, list[Item]] = {name: [] for name, _ in SHARES}
    for text, same in sorted(by_input.items()):
        outputs = tuple(dict.fromkeys(output for item in same for output in item.outputs))
        keys = tuple(sorted({key for item in same for key in item.keys}))
        splits = {split_of(key) for key in keys}
        if len(splits) == 1:
            found[splits.pop()].append(Item(text, outputs, keys))
    return found
