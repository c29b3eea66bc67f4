"""Checkpoints are compared with their checksums, and nothing in them is run."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from mttl.io.errors import CheckpointError
from mttl.io.torch_file import load_torch

STATE = {"step": 3, "weights": {"a": torch.arange(1000.0)}, "names": ["x"], "data": b"y"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def test_every_flipped_bit_is_noticed_or_changes_nothing(path: Path) -> None:
    found, sound = load_torch(path, ""), path.read_bytes()
    assert (found["names"], found["data"]) == (["x"], b"y")
    assert torch.equal(found["weights"]["a"], STATE["weights"]["a"])
    noticed = 0
    for place in range(0, len(sound), 41):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = load_torch(path, "advice")
        except CheckpointError as error:
            noticed += 1
            assert "advice" in str(error)  # noqa: PT017
        else:
            assert torch.equal(found["weights"]["a"], STATE["weights"]["a"])
            assert found["step"] == 3
    assert noticed > 90


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("kind", ["inside", "legacy", "plain"])
def test_programs_are_not_run(path: Path, kind: str) -> None:
    marker = path.with_name("ran")
    hostile = {**STATE, "more": Payload(marker)}
    if kind == "plain":
        path.write_bytes(pickle.dumps(hostile))
    else:
        torch.save(hostile, path, _use_new_zipfile_serialization=kind == "inside")
    with pytest.raises(CheckpointError, match=r"has more than tensors|is damaged"):
        load_torch(path, "Start again")
    assert not marker.exists()
