"""The cells of the grid: which pairs of language and operation are tasks, and which are not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from derived_gym.item import Item

from grid_gym.operations import LANGUAGES, OPERATIONS, Operation

MOST_BYTES = 64
_MOST_COPIES = 0.5
_MOST_SHARED = 0.9
_TOLD = 0.5

_Row = tuple[str, tuple[str, ...]]


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
        overlaps: Share of the examples of a task that an earlier task has, by the names of both; of
            more than a half.
    """

    items: dict[Cell, tuple[Item, ...]]
    dropped: dict[str, str]
    overlaps: dict[tuple[str, str], float]


def cross(progress: Callable[[str], None] = lambda _: None) -> Grid:
    """Write every operation in every language, and drop what makes no task of its own.

    Dropped is a pair whose data is not there, whose output mostly is the input, or nine tenths of
    whose examples, or more, are those of an earlier task.

    Args:
        progress: Called with the name of each pair before it is written.
    """
    items: dict[Cell, tuple[Item, ...]] = {}
    rows: dict[str, frozenset[_Row]] = {}
    dropped: dict[str, str] = {}
    overlaps: dict[tuple[str, str], float] = {}
    for operation in OPERATIONS:
        for language in LANGUAGES:
            cell = Cell(language, operation)
            progress(cell.name)
            try:
                found = tuple(operation.items(language))
            except LookupError as error:
                dropped[cell.name] = str(error.args[0])
                continue
            own = frozenset((item.input, item.outputs) for item in found)
            shared = {name: len(own & other) / len(own) for name, other in rows.items()}
            twin = max(shared, key=shared.__getitem__, default="")
            if twin and shared[twin] >= _MOST_SHARED:
                dropped[cell.name] = f"{_share(shared[twin])} rows are those of `{twin}`"
            elif _copies(found) > _MOST_COPIES:
                dropped[cell.name] = "the output is the input"
            else:
                items[cell] = tuple(item for item in found if _short(item))
                rows[cell.name] = own
                overlaps |= {(cell.name, name): n for name, n in shared.items() if n > _TOLD}
    return Grid(items, dropped, overlaps)


def _share(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%} of the"


def _copies(items: Iterable[Item]) -> float:
    copied = [item.input in item.outputs for item in items]
    return sum(copied) / len(copied)


def _short(item: Item) -> bool:
    return all(len(text.encode()) <= MOST_BYTES for text in (item.input, *item.outputs))
