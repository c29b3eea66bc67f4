"""Demonstrations are the same after a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.bot import Demonstration, demonstrate
from envs.demonstration_file import load_demonstrations, save_demonstrations

LEVELS = ["GoToObj", "PutNextLocalS5N3"]


@pytest.fixture(scope="module")
def record() -> list[Demonstration]:
    return [demonstrate(level, seed) for level in LEVELS for seed in range(10)]


def as_lists(record: list[Demonstration]) -> list[dict[str, Any]]:
    return [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(demonstration).items()
        }
        for demonstration in record
    ]


def test_what_is_saved_is_loaded(record: list[Demonstration], tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.npz"
    save_demonstrations(record, path)
    assert as_lists(load_demonstrations(path)) == as_lists(record)
    assert [file.name for file in path.parent.iterdir()] == ["record.npz"]
    with np.load(path) as file:
        assert file["levels"].tolist() == LEVELS
        assert file["lengths"].sum() == len(file["actions"])
    # Images compress well.
    assert path.stat().st_size < 0.2 * sum(one.images.size for one in record)


def test_what_cannot_be_saved_is_told(record: list[Demonstration], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"record.zip' must end in .npz"):
        save_demonstrations(record, tmp_path / "record.zip")
    broken = replace(record[0], images=record[0].images[:, :3])
    path = tmp_path / "record.npz"
    save_demonstrations(record[:2], path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="dimensions"):
        save_demonstrations([record[1], broken], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["record.npz"]


def test_a_file_that_is_missing_foreign_or_damaged_is_told(record, tmp_path) -> None:
    path = tmp_path / "record.npz"
    with pytest.raises(FileNotFoundError):
        load_demonstrations(path)
    save_demonstrations(record, path)
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    for data in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="' is not a file of demonstrations, or damaged: "):
            load_demonstrations(path)
    np.savez(path, images=arrays["images"])
    with pytest.raises(ValueError, match="is not a file of demonstrations"):
        load_demonstrations(path)
    np.savez(path, **{**arrays, "level": arrays["level"] + 2})
    with pytest.raises(ValueError, match="is not a file of demonstrations"):
        load_demonstrations(path)
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(ValueError, match="is not a file of demonstrations"):
        load_demonstrations(tmp_path / "single.npy")
