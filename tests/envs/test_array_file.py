"""Archives of arrays are read, and nothing in them is run."""

from pathlib import Path

import numpy as np
import pytest

from envs.array_file import load_arrays


def test_arrays_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.eye(3), names=np.array(["é", "b"]))
    found = load_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["x"], np.eye(3))
    assert found["names"].tolist() == ["é", "b"]


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        load_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="zip"):
        load_arrays(path)
