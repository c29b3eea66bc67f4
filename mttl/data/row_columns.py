"""Columns of prepared rows as arrays of numbers: nothing of them becomes Python objects."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from datasets.table import InMemoryTable
from jaxtyping import Int64


def numbers_of(rows: Dataset, column: str) -> Int64[np.ndarray, "N"]:
    """Return a column of whole numbers."""
    return rows.data.column(column).to_numpy().astype(np.int64, copy=False)


def lengths_of(rows: Dataset, column: str) -> Int64[np.ndarray, "N"]:
    """Return how long each list of a column is; the lists themselves are not read."""
    lengths = pc.list_value_length(rows.data.column(column))  # pyright: ignore
    return lengths.to_numpy().astype(np.int64)


def pick(rows: Dataset, places: Sequence[int] | np.ndarray) -> Dataset:
    """Return some rows as a table of its own, in memory."""
    return Dataset(InMemoryTable(rows.data.table.take(np.asarray(places))), rows.info)
