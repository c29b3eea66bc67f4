"""The cells of the grid: which pairs of language and operation are tasks, and which are not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from derived_gym.item import Item

from grid_gym.operations import LANGUAGES, OPERATIONS, Operation

MOST_BYTES = 64
_MOST_COPIES = 0.5


@dataclass(frozen=True)
class Cell:
    """One task.

    Attributes:
        language: Its code.
        operation: What is done.
    """

    language: str
    operation: Operation

    @property
    def name(self) -> str:
        """The task's name: both parts."""
        return f"{self.language}_{self.operation.name}"

    @property
    def description(self) -> str:
        """What to do, in words."""
        return self.operation.description.format(LANGUAGES[self.language])


@dataclass(frozen=True)
class Grid:
    """All pairs.

    Attributes:
        items: The examples of every task that input and output leave short enough.
        dropped: Why a pair is none, by its name.
    """

    items: dict[Cell, tuple[Item, ...]]
    dropped: dict[str, str]


def cross(progress: Callable[[str], None] = lambda _: None) -> Grid:
    """Write every operation in every language, and drop what makes no task of its own.

    Dropped is a pair whose data is not there, whose output mostly is the input, or whose rows are
    those of an earlier pair, to the letter.

    Args:
        progress: Called with the name of each pair before it is written.
    """
    items: dict[Cell, tuple[Item, ...]] = {}
    dropped: dict[str, str] = {}
    first: dict[tuple[Item, ...], str] = {}
    for operation in OPERATIONS:
        for language in LANGUAGES:
            cell = Cell(language, operation)
            progress(cell.name)
            try:
                found = tuple(operation.items(language))
            except LookupError as error:
                dropped[cell.name] = str(error.args[0])
                continue
            same = first.setdefault(found, cell.name)
            if same != cell.name:
                dropped[cell.name] = f"the same rows as `{same}`"
            elif _copies(found) > _MOST_COPIES:
                dropped[cell.name] = "the output is the input"
            else:
                items[cell] = tuple(item for item in found if _short(item))
    return Grid(items, dropped)


def _copies(items: Iterable[Item]) -> float:
    copied = [item.input in item.outputs for item in items]
    return sum(copied) / len(copied)


def _short(item: Item) -> bool:
    return all(len(text.encode()) <= MOST_BYTES for text in (item.input, *item.outputs))
