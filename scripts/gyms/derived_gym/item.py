"""One example of a task, before it is drawn into a file."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Item:
    """An input, every output that counts as right, and what it is about.

    Attributes:
        input: What the model reads.
        outputs: The accepted answers; the first one is trained.
        keys: The underlying things (groups of related words, numbers, dates). All of an item's
            keys lie in one split, so that nothing is trained in one task and tested in another.
    """

    input: str
    outputs: tuple[str, ...]
    keys: tuple[str, ...]
