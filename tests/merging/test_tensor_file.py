"""safetensors by ranges, against the library itself."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mttl.io.errors import CheckpointError
from mttl.merging.tensor_file import Entry, TensorFile, write_like


def tensors() -> dict[str, torch.Tensor]:
    return {
        "b.weight": torch.randn(7, 3),
        "a": torch.randn(5).to(torch.bfloat16),
        "half": torch.randn(2, 2).half(),
        "ids": torch.arange(4),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }


@pytest.fixture
def file(tmp_path: Path) -> TensorFile:
    save_file(tensors(), tmp_path / "x.safetensors", {"format": "pt"})
    return TensorFile(tmp_path / "x.safetensors")


def test_ranges_are_those_of_the_library(file: TensorFile) -> None:
    saved = load_file(file.path)
    assert file.entries.keys() == saved.keys()
    for name, value in saved.items():
        entry = file.entries[name]
        assert (entry.shape, entry.dtype) == (tuple(value.shape), value.dtype)
        assert torch.equal(file.read(name), value.flatten())
        parts = [file.read(name, start, stop) for start, stop in entry.ranges(2)]
        assert torch.equal(torch.cat([torch.empty(0).to(value), *parts]), value.flatten())


def test_a_copy_is_the_same_file(file: TensorFile, tmp_path: Path) -> None:
    def ranges(name: str, entry: Entry):
        return (file.read(name, start, stop) for start, stop in entry.ranges(2))

    write_like(file, tmp_path / "y.safetensors", ranges)
    assert (tmp_path / "y.safetensors").read_bytes() == file.path.read_bytes()


def test_new_values_are_cast(file: TensorFile, tmp_path: Path) -> None:
    def doubled(name: str, entry: Entry):
        return [2 * file.read(name).float()]

    write_like(file, tmp_path / "y.safetensors", doubled)
    found = load_file(tmp_path / "y.safetensors")
    assert torch.equal(found["a"], 2 * load_file(file.path)["a"])


def test_what_cannot_be_read_is_refused(file: TensorFile, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        _ = TensorFile(tmp_path / "none.safetensors").entries
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="is not valid safetensors"):
        _ = TensorFile(cut).entries
    eighth = tmp_path / "eighth.safetensors"
    save_file({"w": torch.zeros(2).to(torch.float8_e4m3fn)}, eighth)
    with pytest.raises(CheckpointError, match=r"'w' has the type F8_E4M3; only F64"):
        _ = TensorFile(eighth).entries


def test_a_file_that_changes_meanwhile_is_noticed(file: TensorFile) -> None:
    assert file.entries
    file.path.write_bytes(file.path.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        file.read("b.weight"), file.read("ids"), file.read("scalar")
