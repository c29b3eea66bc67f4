"""Small tasks, and folders of raw records for them."""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mttl.tasks.task import Holdout, Source, Task

ROW = {"text": "a", "label": 0}


def make_task(name: str = "colours", **changes: Any) -> Task:
    """Return a classification task with three labels and a test split."""
    source = changes.pop("source", Source("colours", train="train", test="validation"))
    settings = {
        "name": name,
        "source": source,
        "k": 2,
        "kind": "classification",
        "input": "text: {text}",
        "output": "{label|name}",
        "labels": ("red", "green", "blue"),
        "metric": "ACC",
        "category": "classification/other",
        "description": "Name a colour.",
    }
    return Task(**{**settings, **changes})


def copying_task(name: str = "copying", **changes: Any) -> Task:
    """Return a text-to-text task that holds its test lines out."""
    source = Source("colours", train="train", holdout=Holdout())
    settings = {"kind": "text-to-text", "output": "{text}", "labels": (), "source": source}
    return make_task(name, **{**settings, **changes})


def rows(n: int, n_labels: int = 3) -> list[dict[str, Any]]:
    """Return records whose labels take turns."""
    return [{"text": f"text {i}", "label": i % n_labels} for i in range(n)]


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON Lines, packed where the name ends in ``.gz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_raw(root: Path, n_train: int = 60, n_test: int = 9, name: str = "colours") -> Path:
    """Write the raw records of the tasks above; return the folder."""
    write_jsonl(root / f"{name}__default/train.jsonl.gz", rows(n_train))
    write_jsonl(root / f"{name}__default/validation.jsonl", rows(n_test))
    return root
