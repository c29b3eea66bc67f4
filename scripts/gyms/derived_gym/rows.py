"""The bytes of a gym's files."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from derived_gym.item import Item


def tsv(rows: Iterable[Item]) -> bytes:
    """Return a file of rows."""
    return "".join("\t".join((row.input, *row.outputs)) + "\n" for row in rows).encode()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a file of comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def partition_json(partition: dict[str, list[str]]) -> bytes:
    """Return a partition file."""
    return (json.dumps(partition, indent=2) + "\n").encode()
