"""Archives of arrays are refused before room is made for what they claim."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from envs.array_file import load_arrays


def archive(path: Path, **parts: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    out = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + array.tobytes()


def test_arrays_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.eye(3), names=np.array(["é", "b"]))
    found = load_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["x"], np.eye(3))
    assert found["names"].tolist() == ["é", "b"]


def test_a_claim_is_compared_with_what_is_there(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x=npy(np.arange(4), (10**12,)))
    with pytest.raises(ValueError, match=r"'x.npy' claims an array of shape \(1000000000000,\)"):
        load_arrays(path)


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"'x\.npy' holds objects, which can run any program"):
        load_arrays(tmp_path / "a.npz")


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x=npy(np.zeros(1 << 28, np.uint8)))
    with pytest.raises(ValueError, match=r"unpack to .*, more than 200 times"):
        load_arrays(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="zip"):
        load_arrays(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is no regular file"):
        load_arrays(tmp_path)
