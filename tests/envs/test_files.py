"""Files that are written whole or not at all, and archives of which nothing is run."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from envs.files import load_arrays, written_whole


def test_the_name_is_taken_at_the_end_with_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    usual = tmp_path / "usual.txt"
    usual.touch()
    with written_whole(path) as temporary:
        assert temporary.suffix == ".txt"
        temporary.write_text("all")
        assert not path.exists()
    assert path.read_text() == "all"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert os.listdir(path.parent) == ["a.txt"]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    with pytest.raises(KeyboardInterrupt), written_whole(path) as temporary:  # noqa: PT012
        temporary.write_text("ha")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_arrays_are_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.eye(3), names=np.array(["é", "b"]))
    found = load_arrays(path)
    np.testing.assert_array_equal(found["x"], np.eye(3))
    assert found["names"].tolist() == ["é", "b"]
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="zip"):
            load_arrays(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        load_arrays(path)
