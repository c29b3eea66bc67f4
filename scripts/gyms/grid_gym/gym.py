"""Render the whole gym in memory: path -> bytes."""

from collections.abc import Callable

from derived_gym.rows import partition_json, table, tsv

from grid_gym.cells import Cell, Grid, cross
from grid_gym.operations import LANGUAGES, OPERATIONS
from grid_gym.partitions import PARTITIONS
from grid_gym.readme import readme
from grid_gym.sample import draw

N_PAIRS = len(LANGUAGES) * len(OPERATIONS)


class GridGym:
    """The grid, written once for the folder and for what belongs to it."""

    def __init__(self) -> None:
        self.grid = Grid({}, {}, {})

    def build(self, progress: Callable[[str], None] = lambda _: None) -> dict[str, bytes]:
        """Build every file of the gym's folder: path inside it -> content.

        Args:
            progress: Called with the name of each pair before it is written.
        """
        self.grid = cross(progress)
        drawn = {cell: draw(cell.name, items) for cell, items in self.grid.items.items()}
        files = {
            f"{cell.name}/{file}": tsv(rows)
            for cell, of in drawn.items()
            for file, rows in of.items()
        }
        columns = ("task", "metric", "category", "factors", "description", "source")
        files["TASKS.csv"] = table(columns, map(_cells, drawn))
        files["README.md"] = readme(drawn, self.grid).encode()
        return files

    def settings(self) -> dict[str, bytes]:
        """Return the partitions and the matrix of the factors: path under `configs/` -> content."""
        names = [cell.name for cell in self.grid.items]
        files = {
            f"partitions/{name}.json": partition_json(split(names))
            for name, split in PARTITIONS.items()
        }
        return files | {"router/expert_grid.csv": _expert(self.grid)}


def _cells(cell: Cell) -> tuple[str, ...]:
    operation = cell.operation
    category = f"{operation.family}/{operation.name}"
    factors = f"language={cell.language} operation={operation.name}"
    return cell.name, "ACC", category, factors, cell.description, operation.source


def _expert(grid: Grid) -> bytes:
    """Return a skill for every language and every operation; a task uses its two."""
    values = [*LANGUAGES, *(operation.name for operation in OPERATIONS)]
    rows = (
        (cell.name, *(int(value in (cell.language, cell.operation.name)) for value in values))
        for cell in grid.items
    )
    return table(("task", *values), rows)
